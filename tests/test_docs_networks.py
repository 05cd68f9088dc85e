"""The scenario on the page about networks is the network that its Python code makes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from penstock.scenario.scenario import build

PAGE = Path(__file__).parents[1] / "docs" / "networks.md"


def test_the_yaml_and_the_python_of_the_page_describe_one_network() -> None:
    text = PAGE.read_text()
    (document,) = re.findall(r'```yaml title="research.yaml"\n(.*?)```', text, re.DOTALL)
    first = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    made: dict[str, Any] = {}
    exec(compile(first, PAGE.name, "exec"), made)
    described = build(yaml.safe_load(document), PAGE.parent).network
    assert described.stages == made["research"].stages
    assert described.pools.keys() == made["research"].pools.keys()
    one, other = described.model(), made["research"].model()
    for field in ("pool", "prefill", "decode", "external", "onward", "visits", "replicas", "capacity", "joins"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    jobs = [network.jobs(100, seed=4) for network in (described, made["research"])]
    np.testing.assert_array_equal(jobs[0].delay_s, jobs[1].delay_s)
