from __future__ import annotations

from stagecut.passes.modules import module_names

SCOPES = ["wte", *(f"h.{i}.{part}" for i in range(4) for part in ("attn.q", "attn.k", "mlp")), "ln"]


def named(cut: int, last: int | None = None) -> list[list[str]]:
    stages = [(int(i >= cut),) for i in range(len(SCOPES))]
    return module_names(SCOPES, stages, 2)


def test_whole_siblings_in_a_row_are_shortened() -> None:
    assert named(7) == [["wte", "h.0 … h.1"], ["h.2 … h.3", "ln"]]


def test_a_module_that_is_cut_is_named_by_its_parts() -> None:
    assert named(6) == [["wte", "h.0", "h.1.attn"], ["h.1.mlp", "h.2 … h.3", "ln"]]
    assert named(5) == [
        ["wte", "h.0", "h.1.attn.q"],
        ["h.1.attn.k", "h.1.mlp", "h.2 … h.3", "ln"],
    ]


def test_ops_that_several_stages_run_name_no_module() -> None:
    assert module_names(["a", "b"], [(0, 1), (0,)], 2) == [["b"], []]
