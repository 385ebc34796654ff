"""There are no pixels here: figures are saved as SVG."""


class RendererAgg:
    def __init__(self, *arguments):
        raise NotImplementedError(
            "got: a figure to be drawn as pixels. rule: this matplotlib draws SVG only. try: "
            'figure.savefig(..., format="svg")'
        )
