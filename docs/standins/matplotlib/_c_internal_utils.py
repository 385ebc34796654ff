"""A page has no display to open windows on."""


def display_is_valid():
    return False


def xdisplay_is_valid():
    return False
