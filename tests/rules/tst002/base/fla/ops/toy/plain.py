def toy_shape(x):
    return x.shape
