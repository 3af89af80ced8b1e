import functools

EXTRA = {"BV": 32}
SIZES = [{"BV": 32}, {"BV": 64}]


def passes_on(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)
    return wrapper


def translates(old, new):
    def decorator(fn):
        def wrapper(*args, **kwargs):
            if old in kwargs:
                kwargs[new] = kwargs.pop(old)
            return fn(*args, **kwargs)
        return wrapper
    return decorator


def unknown(fn):
    def wrapper(first, *rest):
        return fn(first)
    return wrapper
