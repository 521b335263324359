"""Random graphs: every form of argument, type, region and cost that the IR knows."""

from __future__ import annotations

from hypothesis import strategies as st

from stagecut.ir.cost import Cost, Saved, Work
from stagecut.ir.graph import (
    Arg,
    Autocast,
    ByMode,
    Context,
    Effects,
    GradMode,
    Graph,
    Input,
    Mode,
    Op,
    Range,
    Recompute,
    Ref,
    StageDevice,
    TorchConstant,
    Value,
    Weight,
    WeightRef,
)
from stagecut.ir.types import ScalarType, SymbolicDim, TensorType

names = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
texts = st.text(max_size=8)
paths = st.lists(st.one_of(names, st.integers(0, 9).map(str)), min_size=1, max_size=3).map(".".join)
finite = st.floats(allow_nan=False)
sizes = st.integers(0, 2**40)
dims = st.one_of(
    st.integers(0, 64),
    st.builds(
        SymbolicDim,
        st.sampled_from(["s0", "4*s0", "Max(1, s0)", "(s0 + 1)//2"]),
        st.integers(0, 99),
    ),
)
dtypes = st.sampled_from(["float32", "bfloat16", "int64", "bool", "complex64", "float8_e4m3fn"])
tensors = st.builds(TensorType, st.lists(dims, max_size=3).map(tuple), dtypes)
scalars = st.one_of(
    st.builds(
        ScalarType, st.just("int"), st.sampled_from(["s0", "s0*s1", "3"]), st.integers(-9, 9)
    ),
    st.builds(ScalarType, st.just("float"), st.just("ToFloat(s0)"), finite),
    st.builds(ScalarType, st.just("bool"), st.just("s0 > 1"), st.booleans()),
)
literals = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    finite,
    texts,
    st.complex_numbers(allow_nan=False, allow_infinity=False, max_magnitude=1e6),
)
modes = st.one_of(
    st.builds(ByMode, st.booleans(), st.booleans()), st.builds(ByMode, finite, finite)
)
contexts = st.one_of(
    st.builds(GradMode, st.booleans()),
    st.builds(Autocast, st.sampled_from(["bfloat16", "float16"]), st.booleans()),
    st.builds(Recompute, st.integers(0, 9)),
    st.builds(Mode, st.booleans()),
)
works = st.builds(Work, finite, finite, finite, st.integers(0, 99), finite)
saves = st.builds(
    Saved, st.sampled_from(["argument", "result", "internal"]), st.integers(0, 9), sizes
)
costs = st.builds(
    Cost,
    works,
    works,
    works,
    st.lists(saves, max_size=2).map(tuple),
    st.lists(st.integers(-1, 9), max_size=2).map(tuple),
    sizes,
    st.sampled_from(["analytic", "measured", "given"]),
)


def arguments(values: list[str], weights: list[str]) -> st.SearchStrategy[Arg]:
    leaves = [literals, modes, st.just(StageDevice()), st.builds(TorchConstant, st.just("float32"))]
    leaves += [st.sampled_from(values).map(Ref)] if values else []
    leaves += [st.sampled_from(weights).map(WeightRef)] if weights else []
    return st.recursive(st.one_of(leaves), lambda inner: st.lists(inner, max_size=3).map(tuple))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A valid graph: unique names, values read after they are made."""
    fresh = draw(st.lists(names, min_size=12, max_size=12, unique=True))
    inputs = [
        Input(
            draw(texts), Value(fresh.pop(), draw(tensors), False), draw(st.sampled_from([0, None]))
        )
        for _ in range(draw(st.integers(1, 2)))
    ]
    inputs += [
        Input(draw(texts), None, None, draw(literals)) for _ in range(draw(st.integers(0, 1)))
    ]
    labels = draw(st.lists(paths, max_size=3, unique=True))
    weights = [_weight(draw, label) for label in labels]
    values = [item.value.name for item in inputs if item.value is not None]
    ops = [_op(draw, fresh, values, labels) for _ in range(draw(st.integers(0, 3)))]
    outputs = draw(st.lists(arguments(values, labels), max_size=3))
    return Graph(
        "Model",
        tuple(inputs),
        tuple(weights),
        tuple(ops),
        tuple(outputs),
        draw(texts),
        draw(texts),
        tuple(draw(st.lists(names, max_size=2))),
        (Range("s0", draw(st.integers(0, 4)), draw(st.none() | st.integers(5, 9))),),
        draw(st.booleans()),
        tuple(draw(st.lists(texts, max_size=2))),
    )


def _weight(draw: st.DrawFn, name: str) -> Weight:
    kind = draw(st.sampled_from(["parameter", "buffer", "constant"]))
    trainable = kind == "parameter" and draw(st.booleans())
    aliases = (f"{name}.again",) if draw(st.booleans()) else ()
    return Weight(name, draw(tensors), kind, trainable, draw(st.booleans()), aliases)


def _op(draw: st.DrawFn, fresh: list[str], values: list[str], weights: list[str]) -> Op:
    arg = arguments(list(values), weights)
    read = draw(st.sampled_from(values))
    args = (Ref(read), *draw(st.lists(arg, max_size=3)))
    kwargs = tuple(draw(st.dictionaries(names, arg, max_size=2)).items())
    count = draw(st.integers(0, 2))
    results = tuple(
        Value(fresh.pop(), draw(tensors | scalars), draw(st.booleans())) for _ in range(count)
    )
    name = results[0].name if results and draw(st.booleans()) else fresh.pop()
    values += [value.name for value in results]
    effects = Effects(*draw(st.sampled_from([((), ()), ((read,), (read,))])), draw(st.booleans()))
    context: tuple[Context, ...] = tuple(draw(st.lists(contexts, max_size=2)))
    target = draw(st.sampled_from(["aten.linear.default", "operator.mul", "module:layers.0.block"]))
    sequence = len(results) > 1 or draw(st.booleans())
    return Op(
        name,
        target,
        args,
        kwargs,
        results,
        sequence,
        draw(texts),
        draw(texts),
        context,
        effects,
        draw(st.none() | costs),
    )
