"""Rules for every file of the repository: safe, portable, small, and linked to one address."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import yaml

from tools import links
from tools.navigation import title
from tools.notebook_files import executed_notebooks, labs, lessons
from tools.notebook_rules import MACHINE_PATH
from tools.set_repository_url import configured_slug, links_to, rewrite, site_of, slug_of

ROOT = Path(__file__).resolve().parents[2]
# Files that must name such folders in order to look for them.
ABOUT_PATHS = {
    "tools/notebook_rules.py",
    "tests/notebooks/test_notebook_rules.py",
    "tests/house/test_repository.py",
}
MAX_BYTES = 1_000_000
# In two parts, so that this file does not find itself.
ANY_ADDRESS = "0.0.0." + "0"
REMOTE_CODE = "--trust-" + "remote-code"


def repository_files() -> list[Path]:
    """Everything that is, or is about to be, in version control."""
    try:
        return links.repository_files()
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout, so the course's own files cannot be told from others")


def code_of(path: Path) -> Iterator[str]:
    """The Python code of a file, or of each cell of a notebook."""
    if path.suffix == ".py":
        yield path.read_text(encoding="utf-8")
    elif path.suffix == ".ipynb":
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                # Magics and shell lines are not Python.
                yield re.sub(r"^(\s*)[%!].*$", r"\1pass", cell.source, flags=re.MULTILINE)


def unsafe(source: str) -> list[str]:
    """What in `source` can run foreign code, or opens a server to the network."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            if node.arg in {"shell", "trust_remote_code"} and node.value.value is True:
                found.append(f"{node.arg}=True")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [text for text in (ANY_ADDRESS, REMOTE_CODE) if text == node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            if called in {"pickle.load", "pickle.loads", "torch.load", "os.system", "joblib.load"}:
                found.append(called)
    return found


def trusting(source: str) -> list[str]:
    """Calls that load a model without saying that its folder brings no code and no pickles.

    transformers asks the user, where nothing is said, and one "y" runs the code.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Attribute(ast.Name(name), "from_pretrained" | "from_config" as how)):
                said = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            case _:
                continue
        if not name.startswith("Auto"):  # of transformers, or as there
            continue
        weights = name == "AutoModelForCausalLM" and how == "from_pretrained"
        if said.get("trust_remote_code") != "False":
            found.append(f"{name}.{how} without trust_remote_code=False")
        elif weights and said.get("use_safetensors") != "True" and "gguf_file" not in said:
            found.append(f"{name}.{how} without use_safetensors=True")
    return found


def test_every_model_is_loaded_without_its_code() -> None:
    """In a lesson and in tests a folder is the course's own; here it may be anybody's."""
    found = {
        str(path.relative_to(ROOT)): problems
        for path in repository_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "tests"
        if (problems := trusting(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("AutoTokenizer.from_pretrained(x)", 1),
        ("AutoTokenizer.from_pretrained(x, trust_remote_code=y)", 1),
        ("AutoConfig.from_pretrained(x, trust_remote_code=False)", 0),
        ("AutoModelForCausalLM.from_config(x)", 1),
        ("AutoModelForCausalLM.from_pretrained(x, trust_remote_code=False)", 1),
        ("AutoModelForCausalLM.from_pretrained(trust_remote_code=False, use_safetensors=True)", 0),
        ("AutoModelForCausalLM.from_pretrained(x, trust_remote_code=False, gguf_file=y)", 0),
        ("ModelConfig.from_pretrained(x)", 0),
    ],
)
def test_a_model_loaded_in_good_faith_is_found(source: str, number: int) -> None:
    assert len(trusting(source)) == number


# What starts a program and does not hand it to the supervisor, and why that is right.
UNSUPERVISED = {
    "utils/processes/ranks.py",  # its ranks end when their input does
    "utils/processes/supervisor.py",  # the supervisor itself
    "tools/setup.py",  # there is no environment yet; Ctrl+C reaches uv, too, and it is waited for
    "tools/grading/isolation.py",  # the kernel's namespaces end it: --kill-child, --pdeathsig
}


def test_no_program_is_started_that_may_outlive_us() -> None:
    found = set()
    for path in repository_files():
        name = str(path.relative_to(ROOT))
        if path.suffix == ".py" and name.split("/")[0] in ("utils", "benchmarks", "tools"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(ast.Attribute(attr="Popen"), [program, *_]):
                        if not ast.unparse(program).startswith("supervised("):
                            found.add(name)
    assert found == UNSUPERVISED


# Functions and tensors between a process and its own children, through a socket in a folder that
# only this user may enter. Nothing is read that others have written.
PRIVATE_CHANNEL = {
    "utils/processes/ranks.py": ["pickle.loads"],
    "utils/processes/rank.py": ["pickle.load", "pickle.load"],
    # Tests that show that something can be sent: they read what they have written themselves.
    "tests/engine/config/test_parts.py": ["pickle.loads"],
    "tests/engine/core/test_plain_data.py": ["pickle.loads", "pickle.loads"],
    "tests/engine/test_output_processor.py": ["pickle.loads"],
}


def test_no_unsafe_code() -> None:
    found = {
        str(path.relative_to(ROOT)): problems
        for path in repository_files()
        for source in code_of(path)
        if (problems := unsafe(source))
    }
    assert found == PRIVATE_CHANNEL


@pytest.mark.parametrize(
    "source",
    [
        "subprocess.run('ls', shell=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "torch.load(path)",
        "pickle.loads(data)",
        f"uvicorn.run(app, host={ANY_ADDRESS!r})",
        f"command = [{REMOTE_CODE!r}]",
    ],
)
def test_unsafe_code_is_found(source: str) -> None:
    assert len(unsafe(source)) == 1


def test_ruff_alone_lays_out_code() -> None:
    marker = re.compile(r"# *fmt: *(skip|off)")
    files = [path for path in repository_files() if path.suffix in {".py", ".ipynb"}]
    assert [str(path) for path in files if marker.search(path.read_text(encoding="utf-8"))] == []


def test_no_file_names_a_folder_of_one_machine() -> None:
    found = []
    for path in repository_files():
        name = str(path.relative_to(ROOT))
        if name in ABOUT_PATHS or path.suffix in {".png", ".gif", ".webp", ".zip", ".ipynb"}:
            continue  # notebooks: tests/notebooks
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert found == []


def test_files_are_small() -> None:
    large = {
        str(path.relative_to(ROOT)): path.stat().st_size
        for path in repository_files()
        if path.suffix != ".ipynb" and path.stat().st_size > MAX_BYTES
    }
    assert large == {}


def test_generated_files_are_ignored() -> None:
    generated = [
        ".venv/bin/python",
        "artifacts/report.json",
        "notebooks/.ipynb_checkpoints/00_start_here-checkpoint.ipynb",
        "gradebook.db",
        "submitted/ada/02_kv_cache/02_kv_cache.ipynb",
        "utils/__pycache__/hub.cpython-311.pyc",
        "model.safetensors",
    ]
    command = ["git", "check-ignore", "--no-index", *generated]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.splitlines() == generated


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_relative_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    targets = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'(?:src|href)="([^"#]+)"', text)
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert missing == []


# --- one address --------------------------------------------------------------------------------

COLAB = re.compile(
    r"colab\.research\.google\.com/github/([\w.-]+/[\w.-]+)/blob/([\w.-]+)/([^\s)\"]+)"
)
BINDER = re.compile(r"mybinder\.org/v2/gh/([\w.-]+/[\w.-]+)/([\w.-]+)")


def readme_text() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def texts_with_badges() -> Iterator[tuple[Path, str]]:
    for path in [ROOT / "README.md", *executed_notebooks(), *labs()]:
        yield path, path.read_text(encoding="utf-8")


def test_badges_lead_to_this_repository() -> None:
    slug = configured_slug()
    for path, text in texts_with_badges():
        for found, _branch, target in COLAB.findall(text):
            assert found == slug, f"{path.name} opens {found} in Colab"
            target = re.split(r"[\\#?]", target)[0]
            assert (ROOT / target).is_file(), f"{path.name} opens {target}, which does not exist"
        for found, _branch in BINDER.findall(text):
            assert found == slug, f"{path.name} opens {found} on Binder"


def test_readme_opens_the_start_page_in_the_cloud() -> None:
    readme = readme_text()
    start = f"notebooks/{lessons()[0].name}"
    assert start in {match[2] for match in COLAB.findall(readme)}
    assert re.search(BINDER.pattern + r"\S*urlpath=lab/tree/" + re.escape(start), readme)


def test_a_lesson_and_its_lab_have_one_name() -> None:
    """In the README's table, as headings (and so on the site), and in links from one to another."""
    names = re.findall(r"^\| (\d\d\w?) \| \[(.+?)\]\(notebooks/", readme_text(), re.MULTILINE)
    assert [f"{number} · {name}" for number, name in names] == [title(path) for path in lessons()]
    by_number = dict(names)
    for path in labs():
        number = path.name.partition("_")[0]
        assert title(path) == f"Lab {number}: {by_number[number]}"


def test_course_map_has_every_lesson_with_its_minutes() -> None:
    row = re.compile(r"^\| (\d\d\w?) \| \[.+?\]\(notebooks/(\S+?)\) \|.*?\| (\d+) \|", re.MULTILINE)
    in_map = {name: int(minutes) for _, name, minutes in row.findall(readme_text())}
    in_lessons = {}
    for path in lessons():
        time = re.search(r"\*\*Time\.\*\* (\d+) minutes", path.read_text(encoding="utf-8"))
        in_lessons[path.name] = int(time[1]) if time else None
    assert in_map == in_lessons


def test_address_can_be_changed_everywhere(tmp_path: Path) -> None:
    copy = tmp_path / "course"
    for path in repository_files():
        if path.suffix in {".md", ".toml", ".cff", ".py", ".ipynb"}:
            (copy / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy / path.relative_to(ROOT))
    before = {path: path.read_text() for path in copy.rglob("*") if path.is_file()}
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)
    old = configured_slug(copy)

    new = "ada/" + "other.course"  # in two parts: this file is in the copy, too
    changed = rewrite(copy, f"https://github.com/{new}.git")
    assert {"pyproject.toml", "README.md", "CITATION.cff"} <= {path.name for path in changed}
    assert configured_slug(copy) == new
    assert not any(links_to(old).search(path.read_text()) for path in before)
    assert site_of(new) in (copy / "README.md").read_text()
    assert not any(site_of(old) in path.read_text() for path in before)

    rewrite(copy, f"https://github.com/{old}")
    assert {path: path.read_text() for path in before} == before


@pytest.mark.parametrize(
    "url", ["", "ada/course", "https://gitlab.com/ada/course", "https://github.com/ada", "x y"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not of the form"):
        slug_of(url)


def test_links_to_a_longer_name_are_left_alone() -> None:
    pattern = links_to("ada/course")
    assert pattern.search("https://github.com/ada/course.git")
    assert pattern.search("see github.com/ada/course.")
    assert not pattern.search("https://github.com/ada/course-2")
    assert not pattern.search("https://github.com/ada/course.js")


# --- licence and citation -----------------------------------------------------------------------


def test_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert all(f"\n   {section}. " in text for section in range(1, 10))
    assert project()["license"] == "Apache-2.0"


def test_citation_is_valid() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    # Required by version 1.2.0 of the Citation File Format.
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "From KV Cache to vLLM"
    assert citation["message"]
    assert all(author.get("name") or author.get("family-names") for author in citation["authors"])
    assert citation["version"] == project()["version"]
    assert citation["license"] == project()["license"]
    assert slug_of(citation["repository-code"]) == configured_slug()


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
