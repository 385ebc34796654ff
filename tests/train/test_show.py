"""A run in a notebook."""

from pathlib import Path

from tinyprop.train import Config
from tinyprop.train.show import show_run

ROW = {"epoch": 1, "lr": 0.1, "train_loss": 2.5, "test_loss": 2.0, "test_error": 0.125}


def test_a_page_has_settings_numbers_and_curves():
    history = [ROW | {"epoch": epoch} for epoch in range(1, 21)]
    page = show_run(Path("<runs>"), Config(epochs=30, lr=0.5), history)
    assert "&lt;runs&gt;: 20 of 30 epochs" in page
    assert "epochs = 30, lr = 0.5" in page
    assert page.count("12.50%") == 10
    assert page.count("data:image/png;base64,") == 1


def test_a_run_that_has_not_begun():
    page = show_run(Path("runs/new"), Config(), [])
    assert page == "<p>runs/new: 0 of 10 epochs</p><p>default settings</p>"
