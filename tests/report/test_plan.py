from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from stagecut.report import render_html, render_text
from tests.conftest import Golden
from tests.report.sample import GIB, sample_plan


def test_a_plan_as_text(golden: Golden) -> None:
    golden("plan.txt", render_text(sample_plan()))


def test_a_narrow_terminal_loses_no_figure(golden: Golden) -> None:
    text = render_text(sample_plan(), width=80)
    assert "…" not in text.replace("blocks.0 …", "").replace("… blocks.3", "").replace("…\n", "")
    assert max(map(len, text.splitlines())) <= 80
    golden("plan_80_columns.txt", text)


def test_the_assumed_cluster_is_named_as_such() -> None:
    plan = sample_plan()
    assert "assumed" in render_text(plan).splitlines()[0]
    given = replace(plan, cluster=replace(plan.cluster, assumed=False))
    assert "assumed" not in render_text(given)


def test_the_dtype_of_products_is_named_where_it_was_chosen() -> None:
    plan = sample_plan()
    assert "float32 products" not in render_text(plan)
    for dtype, word in (("tf32", "TF32"), ("float32", "float32")):
        chosen = render_text(replace(plan, cluster=plan.cluster.running(dtype)))
        assert f"float32 products in {word};" in chosen


def test_a_proved_optimum_is_called_optimal() -> None:
    assert "optimal" not in render_text(sample_plan())
    assert "optimal: proved" in render_text(replace(sample_plan(), optimal=True))


def test_a_stage_over_its_limit_is_named() -> None:
    plan = sample_plan()
    small = replace(plan.stages[1], memory=replace(plan.stages[1].memory, limit=0.1 * GIB))
    text = render_text(replace(plan, stages=(plan.stages[0], small)))
    assert "does not fit: stage 1 is over its memory limit" in text
    assert "102 MiB" in text


def test_a_search_that_the_clock_ended_says_so() -> None:
    assert "time limit" in render_text(replace(sample_plan(), stopped_by_clock=True))


def test_names_are_not_markup() -> None:
    assert "A [bracketed] note stays as it is." in render_text(sample_plan())


def test_one_stage_has_no_transfers() -> None:
    plan = sample_plan()
    alone = replace(plan.stages[0], sends=())
    assert "transfers, one micro-batch" not in render_text(replace(plan, stages=(alone,)))


def test_html_is_one_self_contained_page() -> None:
    page = render_html(sample_plan())
    assert page.lstrip().startswith("<!DOCTYPE html>")
    assert "TinyGPT" in page
    assert "<script" not in page
    assert "http" not in page


@pytest.mark.parametrize("module", ["stagecut.report", "stagecut.cli"])
def test_printing_needs_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
