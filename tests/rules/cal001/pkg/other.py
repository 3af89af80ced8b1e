from .deep import reexported


def renamed(x, new=None): ...
