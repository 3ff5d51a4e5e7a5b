"""Operations made faster for CPUs: compiled loops and the autograd functions around them. Only `ops` imports them."""
