def check(feature):
    return False
