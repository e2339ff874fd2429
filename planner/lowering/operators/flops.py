"""How many floating point operations an op takes: one for each multiply and each add.

Convolutions, matrix products and attention are counted exactly. Everything else is of the right order only: memory
traffic bounds those ops.
"""

from __future__ import annotations

import math

from planner.lowering.operators.rows import Count, Params, Types


def per_element(count: int) -> Count:
    """A fixed count for each element of output 0."""
    return lambda inputs, outputs, params: count * outputs[0].elements


def per_input_element(count: int) -> Count:
    """A fixed count for each element of input 0."""
    return lambda inputs, outputs, params: count * inputs[0].elements


def per_output(count: int) -> Count:
    """A fixed count for each element of every output."""
    return lambda inputs, outputs, params: count * sum(value.elements for value in outputs)


def no_flops(inputs: Types, outputs: Types, params: Params) -> int:
    """No arithmetic: the op moves elements, or only renames them."""
    return 0


def folded(more: int) -> Count:
    """For each element one operation for every input but the first, and `more` in all."""
    return lambda inputs, outputs, params: (len(inputs) - 1 + more) * outputs[0].elements


def added(inputs: Types, outputs: Types, params: Params) -> int:
    """(x, indices, values): one add for each value."""
    return inputs[2].elements


def conv(inputs: Types, outputs: Types, params: Params) -> int:
    """The weight is (Cout, Cin / groups, *kernel): each output element is a dot product of its last axes."""
    spread = inputs[0] if params.get("transposed") else outputs[0]  # aten.convolution is both
    return 2 * spread.elements * math.prod(inputs[1].shape[1:])


def conv_transpose(inputs: Types, outputs: Types, params: Params) -> int:
    """Each input element is spread by the last axes of the weight, (Cin, Cout / groups, *kernel)."""
    return 2 * inputs[0].elements * math.prod(inputs[1].shape[1:])


def conv_gradient(inputs: Types, outputs: Types, params: Params) -> int:
    """(dY, X, W): the forward count for each of dX and dW that is made; an add an element of dY for the bias."""
    spread = inputs[1] if params.get("transposed") else inputs[0]
    forward = 2 * spread.elements * math.prod(inputs[2].shape[1:])
    return sum(forward if len(made.shape) > 1 else inputs[0].elements for made in outputs)


def deform_conv(inputs: Types, outputs: Types, params: Params) -> int:
    """A convolution on samples that are interpolated first."""
    samples = outputs[0].shape[0] * math.prod(outputs[0].shape[2:]) * math.prod(inputs[1].shape[1:])
    return conv(inputs, outputs, params) + 8 * samples


def gemm(inputs: Types, outputs: Types, params: Params) -> int:
    """Each output element is a dot product; the bias is not counted, as is the custom."""
    return 2 * outputs[0].elements * inputs[0].shape[0 if params.get("transA") else -1]


def dot_product(position: int) -> Count:
    """Each output element is a dot product of the last axis of this input; a bias is not counted."""
    return lambda inputs, outputs, params: 2 * outputs[0].elements * inputs[position].shape[-1]


def attention(inputs: Types, outputs: Types, params: Params) -> int:
    """Two products of (..., T, D) by (..., D, S) and the softmax between; a causal mask saves nothing here."""
    scores = math.prod(inputs[0].shape[:-1]) * inputs[1].shape[-2]
    return scores * (2 * inputs[0].shape[-1] + 2 * inputs[2].shape[-1] + 5)


def attention_gradient(inputs: Types, outputs: Types, params: Params) -> int:
    """(dY, q, k, v, ...): the scores are made again, and four more products."""
    scores = math.prod(inputs[1].shape[:-1]) * inputs[2].shape[-2]
    return scores * (6 * inputs[1].shape[-1] + 4 * inputs[3].shape[-1] + 5)


def einsum(inputs: Types, outputs: Types, params: Params) -> int:
    """For each factor the product of all sizes: two for a matrix product, one where a lone factor is summed."""
    sizes = einsum_sizes(inputs, params)
    return max(len(inputs), 1) * math.prod(sizes.values()) if sizes else 0


def einsum_sizes(inputs: Types, params: Params) -> dict[str, int]:
    """The size of each letter of the equation; axes under an ellipsis are letters counted from the right."""
    sizes: dict[str, int] = {}
    for value, term in zip(inputs, einsum_terms(inputs, params)[0], strict=True):
        for letter, size in zip(term, value.shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    return sizes


def einsum_terms(inputs: Types, params: Params) -> tuple[list[list[str]], list[str]]:
    """The letters of each input and of the output."""
    equation = params.get("equation", "")
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms: list[list[str]] = []
    for term, value in zip(left.split(","), inputs, strict=True):
        count = len(value.shape) - len(term.replace("...", ""))
        head, dots, tail = term.partition("...")
        terms.append([*head, *(f".{k}" for k in range(count, 0, -1) if dots), *tail])
    dotted = {letter for term in terms for letter in term if letter.startswith(".")}
    spread = sorted(dotted, key=lambda letter: -int(letter[1:]))
    if arrow:
        head, dots, tail = right.partition("...")
        return terms, [*head, *(spread if dots else ()), *tail]
    every = [letter for term in terms for letter in term if not letter.startswith(".")]
    return terms, [*spread, *sorted(letter for letter in set(every) if every.count(letter) == 1)]


def pool(inputs: Types, outputs: Types, params: Params) -> int:
    """One operation for each element of each window."""
    kernel = [int(size) for size in params.get("kernel_shape") or params.get("kernel_size") or (1,)]
    if len(kernel) == 1 and "kernel_size" in params:  # PyTorch: one number for all axes
        kernel *= len(outputs[0].shape) - 2
    return outputs[0].elements * math.prod(kernel)


def lrn(inputs: Types, outputs: Types, params: Params) -> int:
    """A sum of squares over a window of channels, and a power."""
    return outputs[0].elements * (2 * int(params.get("size") or 1) + 3)


def recurrent(gates: int, pointwise: int) -> Count:
    """(x, weights, recurrent weights), x as (steps, batch, width): two products a gate, and the gates themselves."""

    def count(inputs: Types, outputs: Types, params: Params) -> int:
        steps, batch, width = inputs[0].shape
        directions, _, hidden = inputs[2].shape
        return steps * batch * directions * hidden * (2 * gates * (width + hidden) + pointwise)

    return count


def layer(products: int) -> Count:
    """(x, weights, recurrent weights), x as (steps, batch, width): `products` times both products of each step."""

    def count(inputs: Types, outputs: Types, params: Params) -> int:
        return 2 * products * math.prod(inputs[0].shape[:2]) * (inputs[1].elements + inputs[2].elements)

    return count


def sort(inputs: Types, outputs: Types, params: Params) -> int:
    """Comparisons of a sort along one axis."""
    axis = params.get("axis", params.get("dim", -1))
    length = inputs[0].shape[axis] if inputs[0].shape else 1
    return inputs[0].elements * max(length - 1, 1).bit_length()
