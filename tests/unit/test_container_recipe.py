"""What Dockerfiles and scripts take from registries and the internet, told before anything is run."""

from __future__ import annotations

import pytest

from flywheel.evaluation.benchmarks.container_recipe import (
    InstalledPackages,
    explain_script,
    explain_unbuildable,
    find_copied,
    list_uv_requirements,
    parse_recipe,
    split_commands,
)

HERE = InstalledPackages({"curl": "7.88", "git": "2.39"}, {"pytest": "8.4.1", "pytest-json-ctrf": "0.3.5"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("apt-get update && apt-get install -y curl git", ""),
        ("apt-get update && apt-get install -y --no-install-recommends curl nginx", "the Debian package nginx"),
        ("apt-get install -y git=1:9", "the Debian package git=1:9"),
        ("apt-get install -y \\\n  curl \\\n  tmux", "the Debian package tmux"),
        ("pip install pytest==8.4.1", ""),
        ("pip3 install --break-system-packages pytest==9.0", "the Python package pytest==9.0"),
        ("python3 -m pip install numpy", "the Python package numpy"),
        ("pip install -r requirements.txt", "a list of Python packages"),
        ("curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh", ""),
        ("uvx -p 3.13 -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 pytest --ctrf /x /tests/t.py", ""),
        ("uvx -w numpy==2.3 pytest t.py", "the Python package numpy==2.3"),
        ("uv init\nuv add pytest==8.4.1\nuv run pytest t.py", ""),
        ("git clone https://example.org/a.git", "the internet: git clone https://example.org/a.git"),
        ("git clone /srv/a b", ""),
        ("curl http://localhost:8000/x", ""),
        ("curl -o a https://example.org/a", "the internet: curl https://example.org/a"),
        ("if [ ! -f a ]; then wget https://example.org/a; fi", "the internet: wget https://example.org/a"),
        ("cat > a.sh <<'EOF'\napt-get install -y nginx\nEOF\nls", ""),
        ("echo 'apt-get install nginx; curl https://example.org'", ""),
        ("npm install", "the internet: npm install"),
        ("DEBIAN_FRONTEND=noninteractive apt-get install -y nginx", "the Debian package nginx"),
    ],
)
def test_what_a_script_needs_is_told(text, why):
    assert explain_script(text, HERE) == why


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ("FROM python:3.13-slim-bookworm\nWORKDIR /app\nCOPY a.txt /app/\n", ""),
        ("FROM --platform=linux/amd64 ubuntu:24.04\n", ""),
        ("FROM ubuntu:24.04 AS build\nFROM ubuntu:24.04\n", "2 stages"),
        ("FROM nvidia/cuda:12\n", "the image nvidia/cuda:12"),
        ("FROM ubuntu:24.04\nCOPY b.txt /app/\n", "the file b.txt, which is not beside it"),
        ("FROM ubuntu:24.04\nCOPY ../a.txt /app/\n", "../a.txt leads out of the recipe's folder"),
        ("FROM ubuntu:24.04\nCOPY --from=ghcr.io/astral-sh/uv:0.8 /uv /uvx /bin/\n", ""),
        ("FROM ubuntu:24.04\nCOPY --from=build /a /b\n", "files of build"),
        ("FROM ubuntu:24.04\nADD https://example.org/a /a\n", "the internet: https://example.org/a"),
        ("FROM ubuntu:24.04\nRUN bash fetch.sh\n", "the internet: git clone https://example.org/a (in fetch.sh)"),
        ("FROM ubuntu:24.04\nUSER nobody\n", "the user nobody"),
    ],
)
def test_what_a_recipe_needs_is_told(tmp_path, recipe, why):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "fetch.sh").write_text("git clone https://example.org/a\n")
    assert explain_unbuildable(recipe, tmp_path, HERE) == why


def test_a_recipe_is_parsed_with_continuations_comments_and_here_documents():
    text = "# a\nFROM x\nRUN a && \\\n  # no\n  b\nRUN <<EOF\none\ntwo\nEOF\nENV A=1\n"
    steps = parse_recipe(text)
    assert [(one.name, one.body) for one in steps] == [("FROM", ""), ("RUN", ""), ("RUN", "one\ntwo"), ("ENV", "")]
    assert steps[1].text.split() == ["a", "&&", "b"]


def test_commands_are_split_outside_of_quotes():
    assert list(split_commands("a 'b; c' && d | e # f\n")) == [["a", "b; c"], ["d"], ["e"]]


def test_a_source_that_leads_out_of_the_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="leads out"):
        find_copied(tmp_path, "../x")


def test_what_uv_runs_is_found_behind_its_options():
    required, command = list_uv_requirements("uvx", ["-p", "3.13", "-w", "a==1", "pytest", "-rA"])
    assert (required, command) == (["a==1", "pytest"], ["pytest", "-rA"])
    assert list_uv_requirements("uv", ["run", "--with", "b", "x.py"]) == (["b"], ["x.py"])
    assert list_uv_requirements("uv", ["init"]) == ([], [])
