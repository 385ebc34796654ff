# %% [markdown]
# # NormProp and BatchNorm on a GPU
#
# The paper's network at full width, trained with NormProp and with BatchNorm on the same drawn
# shapes. Open it in a clone of tinyprop, on any machine with an NVIDIA GPU: the first cell installs
# what is missing. Lines show the loss, the test error, images per second and the memory in use; the
# figure at the end shows both trainings. From the second batch on, a step is one launch: a CUDA
# graph of about 120 kernels, which keeps Python out of the way.

# %%
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

WIDTH, EPOCHS = 1.0, 4
# a clone of tinyprop
HERE = Path.cwd() if (Path.cwd() / "pyproject.toml").exists() else Path.cwd().parent


def install(*packages):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *packages], check=True)


if find_spec("tinyprop") is None:
    install(str(HERE))
if find_spec("cupy") is None and Path("/proc/driver/nvidia").exists():
    install("cupy-cuda12x[ctk]>=14")

# %%
from tinyprop.cli import main  # noqa: E402
from tinyprop.instruments import info  # noqa: E402  # only now is it sure to be there

problem = info.diagnose(info.look())
print(problem or f"on {', '.join(info.look().devices)}")

# %%
out = Path("runs/gpu_demo")
if not problem:
    main(
        [
            "demo",
            "--backend",
            "cupy",
            "--width",
            str(WIDTH),
            "--epochs",
            str(EPOCHS),
            "--out",
            str(out),
        ]
    )

# %%
if not problem and "ipykernel" in sys.modules:
    from IPython.display import Image, display

    display(Image(str(out / "gpu.png")))
