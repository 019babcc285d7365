#!/usr/bin/env python3
"""A small transformer that learns its own source, letter by letter. Run by itself, it checks its gradients.

The same few lines are its way forward in numpy and in torch. Backward it goes by hand in numpy, by autograd in torch.
`parameters` may be one rank's shards: then `reduce` adds up what the ranks have of a sum.
"""
import math
import pathlib

import numpy

TEXT = pathlib.Path(__file__).read_text(encoding="utf-8")
LETTERS = sorted(set(TEXT))
CODES = numpy.array([LETTERS.index(letter) for letter in TEXT])
CONTEXT, WIDTH, HEADS = 32, 64, 4
HEAD = WIDTH // HEADS


def shapes(layers):
    """The shape of each parameter by its name."""
    names = {"letters": (len(LETTERS), WIDTH), "places": (CONTEXT, WIDTH)}
    for layer in range(layers):
        for name in "query", "key", "value", "mix":
            names[f"{layer}.{name}"] = (WIDTH, WIDTH)
        names[f"{layer}.up"], names[f"{layer}.down"] = (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)
    return names


def made(layers):
    chance = numpy.random.default_rng(50)
    return {name: chance.normal(0, 0.1 if "." not in name else shape[1] ** -0.5, shape).astype("f")
            for name, shape in shapes(layers).items()}


def batch(chance, size):
    """Lines of letters, and the letter that comes after each."""
    begins = chance.integers(0, len(CODES) - CONTEXT - 1, size)
    lines = CODES[begins[:, None] + numpy.arange(CONTEXT + 1)]
    return lines[:, :-1], lines[:, 1:]


def layers_of(parameters):
    return sum(name.endswith(".up") for name in parameters)


def normed(x):
    return x * ((x * x).mean(-1, keepdims=True) + 1e-5) ** -0.5


def in_heads(x):
    return x.reshape(*x.shape[:2], -1, HEAD).swapaxes(1, 2)


def of_heads(x):
    x = x.swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1)


def attention(library, query, key, hidden):
    scores = query @ key.swapaxes(2, 3) * HEAD ** -0.5 + hidden
    powers = library.exp(scores - library.amax(scores, -1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def logits(library, parameters, letters, reduce=lambda x: x, kept=None):
    """For each place, how likely each letter comes next. `kept` gets what numpy's way back needs."""
    p, length = parameters, letters.shape[1]
    hidden = library.triu(library.ones((length, length)) * -1e4, 1)
    x = p["letters"][letters] + p["places"][:length]
    for layer in range(layers_of(p)):
        query, key, value, mix, up, down = (p[f"{layer}.{name}"] for name in ("query", "key", "value", "mix", "up", "down"))
        h = normed(x)
        q, k, v = (in_heads(h @ w.T) for w in (query, key, value))
        seen = attention(library, q, k, hidden)
        o = of_heads(seen @ v)
        y = x + reduce(o @ mix.T)
        g = normed(y)
        u = g @ up.T
        u = u * (u > 0)
        if kept is not None:
            kept.append((x, h, q, k, v, seen, o, y, g, u))
        x = y + reduce(u @ down.T)
    if kept is not None:
        kept.append(x)
    return normed(x) @ p["letters"].T


def loss_and_gradients(library, parameters, letters, following):
    return (of_numpy if library is numpy else of_torch)(parameters, letters, following)


def of_torch(parameters, letters, following):
    import torch

    p = {name: torch.from_numpy(array).requires_grad_() for name, array in parameters.items()}
    scores = logits(torch, p, torch.from_numpy(letters))
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), torch.from_numpy(following).flatten())
    loss.backward()
    return loss.item(), {name: tensor.grad.numpy() for name, tensor in p.items()}


def back_normed(x, y, dy):
    return ((x * x).mean(-1, keepdims=True) + 1e-5) ** -0.5 * (dy - y * (dy * y).mean(-1, keepdims=True))


def product(a, b):
    """Of all lines and places."""
    return a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1])


def of_numpy(parameters, letters, following):
    p, kept, d = parameters, [], {}
    scores = logits(numpy, p, letters, kept=kept)
    scores -= scores.max(-1, keepdims=True)
    likely = numpy.exp(scores)
    likely /= likely.sum(-1, keepdims=True)
    at = (*numpy.indices(following.shape), following)
    loss = -numpy.log(likely[at] + 1e-20).mean()
    likely[at] -= 1
    likely /= following.size
    x = kept.pop()
    end = normed(x)
    d["letters"] = product(likely, end)
    dx = back_normed(x, end, likely @ p["letters"])
    for layer in reversed(range(layers_of(p))):
        x, h, q, k, v, seen, o, y, g, u = kept[layer]
        query, key, value, mix, up, down = (p[f"{layer}.{name}"] for name in ("query", "key", "value", "mix", "up", "down"))
        d[f"{layer}.down"] = product(dx, u)
        du = dx @ down * (u > 0)
        d[f"{layer}.up"] = product(du, g)
        dy = dx + back_normed(y, g, du @ up)
        d[f"{layer}.mix"] = product(dy, o)
        do = in_heads(dy @ mix)
        dseen = do @ v.swapaxes(2, 3)
        dscores = seen * (dseen - (dseen * seen).sum(-1, keepdims=True)) * HEAD ** -0.5
        parts = of_heads(dscores @ k), of_heads(dscores.swapaxes(2, 3) @ q), of_heads(seen.swapaxes(2, 3) @ do)
        for name, part in zip(("query", "key", "value"), parts):
            d[f"{layer}.{name}"] = product(part, h)
        dx = dy + back_normed(x, h, sum(part @ w for part, w in zip(parts, (query, key, value))))
    d["places"] = numpy.zeros_like(p["places"])
    d["places"][:letters.shape[1]] = dx.sum(0)
    numpy.add.at(d["letters"], letters, dx)
    return float(loss), {name: d[name].astype(p[name].dtype) for name in p}


def main():
    """Compares the gradients with what the loss does when a weight changes a little."""
    p = {name: array.astype("d") for name, array in made(2).items()}
    letters, following = batch(numpy.random.default_rng(51), 3)
    chance, worst = numpy.random.default_rng(52), 0.0
    _, gradients = of_numpy(p, letters, following)
    for name, array in p.items():
        for _ in range(3):
            at = tuple(chance.integers(0, size) for size in array.shape)
            if name == "letters":
                at = (letters[0, 0], at[1])
            was, losses = array[at], []
            for change in 1e-5, -1e-5:
                array[at] = was + change
                losses.append(of_numpy(p, letters, following)[0])
            array[at] = was
            by_loss = (losses[0] - losses[1]) / 2e-5
            worst = max(worst, abs(by_loss - gradients[name][at]) / (abs(by_loss) + 1e-4))
    assert worst < 1e-3, worst
    try:
        import torch  # noqa: F401
    except ImportError:
        pass
    else:
        loss, by_torch = of_torch({name: array.astype("f") for name, array in p.items()}, letters, following)
        for name in p:
            numpy.testing.assert_allclose(gradients[name], by_torch[name], atol=1e-5)
    assert math.isfinite(worst)
    print(f"{3 * len(p)} gradients of {sum(array.size for array in p.values())} are right")


if __name__ == "__main__":
    main()
