def draw(rng): raise NotImplementedError
