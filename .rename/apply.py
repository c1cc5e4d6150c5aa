"""The renaming of the tree, as a program: `apply.py moves TREE`, then `apply.py names TREE`.

Rules are tables in `rules/*.py`. What does not match is reported, never fatal.
"""

import ast
import collections
import fnmatch
import functools
import importlib.util
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = Path("platform/trainrig")
TEXTS = (".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".cfg", ".json", "Makefile", "Dockerfile", ".css", ".svg")
reports: list[str] = []


def say(text):
    reports.append(text)


class Rules:
    """All tables of `rules/`, joined."""

    def __init__(self):
        self.moves, self.packages, self.test_moves, self.files = {}, {}, {}, {}
        self.names, self.tokens, self.strings, self.words, self.patches = [], [], [], [], []
        self.move_patches, self.hooks, self.regexes, self.name_hooks = [], [], [], []
        for path in sorted((HERE / "rules").glob("*.py")):
            spec = importlib.util.spec_from_file_location(path.stem, path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            for key, own in vars(self).items():
                got = getattr(module, key.upper(), None)
                if got is None:
                    continue
                if isinstance(own, dict):
                    own.update(got)
                else:
                    own.extend(got)


def git(tree, *args):
    return subprocess.run(["git", *args], cwd=tree, check=True, capture_output=True, text=True).stdout


def tracked(tree):
    names = git(tree, "ls-files", "-co", "--exclude-standard").splitlines()
    return [Path(n) for n in names if (tree / n).is_file() and not (tree / n).is_symlink()]


def is_text(path):
    return path.name.endswith(TEXTS)


# ---- moves ------------------------------------------------------------------------------------


def module_of(path):
    """`train.lease` of platform/trainrig/train/lease.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Moves:
    def __init__(self, tree, rules):
        self.tree, self.rules = tree, rules
        self.old = {module_of(p): p for p in tracked(tree) if p.suffix == ".py" and p.is_relative_to(PACKAGE)}
        self.map = {}
        for module in self.old:
            new = self.find(module)
            if new != module:
                self.map[module] = new
        for rule in rules.moves:
            if not any(m == rule or m.startswith(rule + ".") for m in self.old):
                say(f"moves: no module {rule}")
        self.olds = set(self.old)
        self.packages = {m for m, p in self.old.items() if p.name == "__init__.py"}
        # longest first
        self.dotted = sorted(self.map, key=len, reverse=True)
        keys = sorted([*self.map, *(r for r in rules.moves if r not in self.map)], key=len, reverse=True)
        self.pattern = re.compile(r"(?<![\w.])trainrig\.(" + "|".join(map(re.escape, keys)) + r")(?!\w)")

    def find(self, module):
        parts = module.split(".")
        for n in range(len(parts), 0, -1):
            key = ".".join(parts[:n])
            if key in self.rules.moves:
                return ".".join([self.rules.moves[key], *parts[n:]])
        return module

    def file_map(self):
        out = {}
        for module, path in self.old.items():
            new = self.map.get(module)
            if not new:
                continue
            base = PACKAGE.joinpath(*new.split("."))
            out[path] = base / "__init__.py" if path.name == "__init__.py" else base.with_suffix(".py")
        for old, new in self.rules.files.items():
            if (self.tree / old).exists():
                out[Path(old)] = Path(new)
            else:
                say(f"moves: no file {old}")
        for path in tracked(self.tree):
            if path in out:
                continue
            if path.is_relative_to(PACKAGE) and path.suffix != ".py":
                out.update(self._beside(path))
            if path.parts[0] == "tests" and len(path.parts) > 1:
                out.update(self._test(path))
        return {a: b for a, b in out.items() if a != b}

    def _beside(self, path):
        """Data files go with the package they lie in."""
        folder = ".".join(path.parent.relative_to(PACKAGE).parts)
        new = self.find(folder) if folder else folder
        return {path: PACKAGE.joinpath(*new.split(".")) / path.name} if new != folder else {}

    def _test(self, path):
        if str(path) in self.rules.test_moves:
            return {path: Path(self.rules.test_moves[str(path)])}
        folder = path.relative_to("tests").parent.parts
        if path.suffix == ".py" and path.name.startswith("test_"):
            module = ".".join([*folder, path.stem[5:]])
            if module in self.map:
                new = self.map[module].split(".")
                if module in self.packages:  # the test of a package lies within its folder
                    return {path: Path("tests", *new, f"test_{new[-1]}.py")} if False else {
                        path: Path("tests", *new[:-1], f"test_{new[-1]}.py")}
                return {path: Path("tests", *new[:-1], f"test_{new[-1]}.py")}
        # whatever lies in the folder of a package that moves as a whole goes with it
        name = ".".join(folder)
        new = self.find(name)
        if folder and new != name:
            return {path: Path("tests", *new.split(".")) / path.name}
        return {}

    # -- text

    def dotted_text(self, text):
        text = re.sub(r'(?<=")([a-z_]\w*(?:\.\w+)*)(?=:[A-Za-z_]\w*")', lambda m: self.map.get(m[1], m[1]), text)  # module:name
        return self.pattern.sub(lambda m: "trainrig." + self.find(m[1]), text)

    def python(self, path, text, new_path):
        text = in_strings(text, lambda body: self.program(path, body))
        text = self.imports(path, text)
        text = self.dotted_text(text)
        return self.file_paths(path, text, new_path)

    def program(self, path, body):
        """A program in a string: of a test, for a process of its own."""
        try:
            ast.parse(body)
        except SyntaxError:
            return self._lines_of_program(body)
        return self.imports(path, body)

    def _lines_of_program(self, body):
        renamed = {}

        def one(match):
            base, names = match[2][9:], [n.strip() for n in match[3].split(",")]
            out = []
            for name in names:
                full = f"{base}.{name}" if base else name
                if full in self.map:
                    head, _, tail = self.map[full].rpartition(".")
                    source = f"trainrig__MOVED.{head}" if head else "trainrig"
                    renamed[name] = tail
                    out.append(f"{match[1]}from {source} import {tail}")
                else:
                    out.append(f"{match[1]}from {match[2]} import {name}")
            return "\n".join(out)

        body = re.sub(r"^([ ]*)from (trainrig[\w.]*) import ([\w, ]+)$", one, body, flags=re.M)
        for old, new in renamed.items():
            body = re.sub(rf"(?<![\w.]){old}(?=\.)", new, body)
        return body

    def imports(self, path, text):
        """`from trainrig.a import b` where a.b is a module that moves."""
        if "trainrig" not in text:
            return text
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            say(f"moves: {path}: {error}")
            return text
        lines = text.splitlines(keepends=True)
        rename, edits = {}, []
        for node in ast.walk(tree):
            if not (isinstance(node, ast.ImportFrom) and node.module and not node.level):
                continue
            if node.module.split(".")[0] != "trainrig":
                continue
            base = node.module[9:]
            stay, gone = [], []
            for alias in node.names:
                full = f"{base}.{alias.name}" if base else alias.name
                (gone if full in self.map else stay).append((alias, full))
            if not gone:
                continue
            indent = " " * node.col_offset
            out = []
            if stay:
                names = ", ".join(f"{a.name} as {a.asname}" if a.asname else a.name for a, _ in stay)
                out.append(f"{indent}from {node.module} import {names}\n")  # module path is renamed later
            grouped = collections.defaultdict(list)
            for alias, full in gone:
                head, _, tail = self.map[full].rpartition(".")
                source = f"trainrig__MOVED.{head}" if head else "trainrig"
                local = alias.asname or alias.name
                if alias.asname:
                    grouped[source].append(f"{tail} as {alias.asname}")
                    continue
                if tail != local:
                    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
                    used |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
                    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
                    bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
                    top = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
                    imported = {a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
                    if local in bound | top or tail in used | top | imported:
                        say(f"moves: {path}: {tail} is taken, or {local} is bound as well: left as `import {tail} as {local}`")
                        grouped[source].append(f"{tail} as {local}")
                        continue
                    rename[local] = tail
                grouped[source].append(tail)
            for source, names in grouped.items():
                out.append(f"{indent}from {source} import {', '.join(names)}\n")
            edits.append((node.lineno - 1, node.end_lineno, out))
        for first, end, out in sorted(edits, reverse=True):
            comment = re.search(r"#.*$", lines[end - 1])
            if comment:
                out = [line.rstrip("\n") + "  " + comment[0].rstrip("\n") + "\n" for line in out]
            lines[first:end] = out
        text = "".join(lines)
        if rename:
            text = rewrite(text, Names(tokens=dict(rename), only_free=True))
        return text

    def file_paths(self, path, text, new_path):
        """`Path(__file__).parents[n]`, `.with_name(…)` of a file that moves."""
        if "__file__" not in text:
            return text
        old_dir, new_dir = path.parent, new_path.parent

        def with_name(match):
            target = old_dir / match[2]
            target = self.renamed.get(target, target)
            made = self._from(new_dir, target, match[1])
            return f"({made})" if match[3] and " / " in made else made

        if any(True for _ in re.finditer(r"with_name\(", text)):
            text = re.sub(r"(Path\(__file__\))\.with_name\(\"([^\"{]+)\"\)(?=(\.?))", with_name, text)

        def parent_join(match):
            depth = 0 if match[2] == "parent" else int(match[2][8:-1])
            base = [old_dir, *old_dir.parents][depth]
            parts = re.findall(r'"([^"]+)"', match[3])
            target = base.joinpath(*parts)
            if not (self.tree / target).exists():
                return match[0]
            return self._from(new_dir, self.renamed.get(target, target), match[1])

        text = re.sub(r'(Path\(__file__\))\.(parent|parents\[\d+\])((?: / "[^"]+")+)', parent_join, text)
        if old_dir == new_dir:
            return text

        def parents(match):
            n = int(match[1])
            ancestors = [old_dir, *old_dir.parents]
            ancestor = ancestors[n]
            try:
                k = [new_dir, *new_dir.parents].index(ancestor)
            except ValueError:
                say(f"moves: {path}: parents[{n}] cannot be kept")
                return match[0]
            return f"Path(__file__).parents[{k}]" if k else "Path(__file__).parent"

        # those that parent_join made are right already: it marks them
        text = re.sub(r"Path\(__file__\)\.parents\[(\d+)\]", parents, text)
        return text.replace("Path(__FILE__)", "Path(__file__)")

    def _from(self, folder, target, _):
        if target.parent == folder:
            return f'Path(__FILE__).with_name("{target.name}")'
        ancestors = [folder, *folder.parents]
        for k, ancestor in enumerate(ancestors):
            if target.is_relative_to(ancestor):
                rest = " / ".join(f'"{p}"' for p in target.relative_to(ancestor).parts)
                head = f"Path(__FILE__).parents[{k}]" if k else "Path(__FILE__).parent"
                return f"{head} / {rest}"
        raise ValueError(target)

    def run(self):
        self.renamed = self.file_map()
        targets = collections.Counter(self.renamed.values())
        for path, count in targets.items():
            if count > 1 or ((self.tree / path).exists() and path not in self.renamed):
                say(f"moves: {path} would be overwritten")
        new_texts = {}
        slashes = self._slashes()
        for path in tracked(self.tree):
            if not is_text(path) or path.suffix == ".svg":
                continue
            text = (self.tree / path).read_text(encoding="utf-8")
            new_path = self.renamed.get(path, path)
            new = self.python(path, text, new_path) if path.suffix == ".py" else self.dotted_text(text)
            new = new.replace("Path(__FILE__)", "Path(__file__)").replace("trainrig__MOVED.", "trainrig.")
            new = slashes(new)
            if new != text:
                new_texts[path] = new
        for path, text in new_texts.items():
            (self.tree / path).write_text(text, encoding="utf-8")
        for old, new in sorted(self.renamed.items()):
            (self.tree / new).parent.mkdir(parents=True, exist_ok=True)
        # in two steps, as one may take the place of another
        for old, new in sorted(self.renamed.items()):
            (self.tree / old).rename(self.tree / (str(new) + ".moving"))
        for new in sorted(self.renamed.values()):
            (self.tree / (str(new) + ".moving")).rename(self.tree / new)
        git(self.tree, "add", "-A", "platform", "tests", "jobs", "docs", "cluster")
        for package, doc in self.rules.packages.items():
            path = self.tree / PACKAGE.joinpath(*package.split(".")) / "__init__.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text().count("\n") <= 3:
                path.write_text(f'"""{doc}"""\n')
        git(self.tree, "add", "-A", str(PACKAGE))
        for folder in sorted((self.tree / PACKAGE).rglob("*"), reverse=True):
            if folder.is_dir() and not any(p.suffix == ".py" and p.name != "__init__.py" for p in folder.rglob("*.py")):
                only = folder / "__init__.py"
                if only.exists() and module_of(only.relative_to(self.tree)) in self.packages and len(only.read_text().splitlines()) <= 3:
                    git(self.tree, "rm", "-qf", str(only.relative_to(self.tree)))
        patch(self.tree, self.rules.move_patches)
        for hook in self.rules.hooks:
            hook(self.tree, say)
        contracts(self.tree)

    def _slashes(self):
        """Paths of files in texts: tests/train/test_lease.py, train/lease.py, corpus/cuts.py."""
        table = {}
        for old, new in self.renamed.items():
            table[str(old)] = str(new)
            if old.is_relative_to(PACKAGE):
                table[str(old.relative_to("platform"))] = str(new.relative_to("platform"))
                short = str(old.relative_to(PACKAGE))
                if "/" in short:
                    table[short] = str(new.relative_to(PACKAGE))
        keys = sorted(table, key=len, reverse=True)
        if not keys:
            return lambda text: text
        pattern = re.compile(r"(?<![\w./-])(" + "|".join(map(re.escape, keys)) + r")(?![\w/])")
        return lambda text: pattern.sub(lambda m: table[m[1]], text)


def contracts(tree):
    """The import-linter contracts of files/contracts.toml instead of those in pyproject.toml."""
    new = HERE / "files" / "contracts.toml"
    if not new.exists():
        return
    path = tree / "pyproject.toml"
    text = path.read_text()
    start = text.index("[[tool.importlinter.contracts]]")
    end = text.find("\n[tool.", start)
    tail = text[end:] if end > 0 else ""
    # seams of Ray that others have added are kept
    body = new.read_text()
    seams = re.findall(r'^  "(trainrig\.[\w.]+ -> ray)",$', text[start:], re.M)
    seams = sorted(set(seams))
    body = body.replace("@SEAMS@", "\n".join(f'  "{s}",' for s in seams))
    path.write_text(text[:start] + body + tail)


def in_strings(text, change):
    """`text` with its strings that are programs of ours changed."""
    if not re.search(r"[\"'\n ](from|import) trainrig", text):
        return text
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    edits = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING and re.search(r"(from|import) trainrig", token.string):
            match = re.match(r"([A-Za-z]*)('''|\"\"\"|'|\")", token.string)
            body = token.string[match.end() : -len(match[2])]
            new = change(body)
            if new != body:
                begin = starts[token.start[0] - 1] + token.start[1] + match.end()
                edits.append((begin, begin + len(body), new))
    for begin, end, new in reversed(edits):
        text = text[:begin] + new + text[end:]
    return text


# ---- names ------------------------------------------------------------------------------------


class Names:
    """What is renamed in one file."""

    def __init__(self, tokens=None, top=None, attributes=None, strings=None, words=(), only_free=False, where=None):
        self.tokens = tokens or {}  # any NAME token
        self.top = top or {}  # names of the module's scope: free, not attributes, not keywords
        self.attributes = attributes or {}  # (module's local name, attribute) -> new
        self.strings = strings or {}
        self.words = words
        self.only_free = only_free
        self.where = where
        self.hits = collections.Counter()


NAME = re.compile(r"(?<![\w])([A-Za-z_]\w*)")


def local_scopes(tree):
    """(first line, last line, names bound) of each function."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            args = node.args
            bound = {a.arg for a in [*args.posonlyargs, *args.args, *args.kwonlyargs]}
            bound |= {a.arg for a in (args.vararg, args.kwarg) if a}
            free = set()
            if not isinstance(node, ast.Lambda):
                stack = list(node.body)
                while stack:
                    each = stack.pop()
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        bound.add(each.name)
                        continue
                    if isinstance(each, ast.Lambda):
                        continue
                    if isinstance(each, ast.Global | ast.Nonlocal):
                        free |= set(each.names)
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store | ast.Del):
                        bound.add(each.id)
                    if isinstance(each, ast.ExceptHandler) and each.name:
                        bound.add(each.name)
                    if isinstance(each, ast.MatchAs | ast.MatchStar) and each.name:
                        bound.add(each.name)
                    stack.extend(ast.iter_child_nodes(each))
            elif node.lineno == node.end_lineno:
                out.append((node.lineno, node.end_lineno, bound, (node.col_offset, node.end_col_offset)))
                continue
            out.append((node.lineno, node.end_lineno, bound - free, None))
    return out


def rewrite(text, names):
    """`text` of a Python file with `names` renamed."""
    scopes = local_scopes(ast.parse(text)) if names.top or names.only_free else []
    class_bodies = set()
    if names.top:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                        class_bodies.add(each.lineno)  # the line of its `def`
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        class_bodies.add(("field", each.lineno, each.target.id))
                    if isinstance(each, ast.Assign):
                        for target in each.targets:
                            if isinstance(target, ast.Name):
                                class_bodies.add(("field", each.lineno, target.id))

    def is_local(line, col, name):
        for first, last, bound, columns in scopes:
            if first <= line <= last and name in bound and (not columns or columns[0] <= col < columns[1]):
                return True
        return False

    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    edits = []
    depth = 0
    code = [t for t in tokens if t.type not in (tokenize.COMMENT, tokenize.NL)]
    index = {id(t): i for i, t in enumerate(code)}

    def new_name(token_text, before, before2, after, line, col, depth):
        keyword = depth > 0 and after == "=" and before in ("(", ",")
        if before == "." and (before2, token_text) in names.attributes and not is_local(line, col, before2):
            names.hits[before2, token_text] += 1
            return names.attributes[before2, token_text]
        if token_text in names.top and before != "." and not keyword and not is_local(line, col, token_text):
            if before == "def" and line in class_bodies:
                return names.tokens.get(token_text)
            if ("field", line, token_text) in class_bodies and after in (":", "="):
                return names.tokens.get(token_text)
            names.hits[token_text] += 1
            return names.top[token_text]
        if token_text in names.tokens:
            if names.only_free and (before == "." or keyword or is_local(line, col, token_text)):
                return None
            names.hits[token_text] += 1
            return names.tokens[token_text]
        return None

    previous = None
    for token in tokens:
        begin = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        if token.type == tokenize.OP:
            depth += token.string in "([{"
            depth -= token.string in ")]}"
        elif token.type == tokenize.NAME:
            i = index[id(token)]
            before = code[i - 1].string if i else ""
            before2 = code[i - 2].string if i > 1 else ""
            if i > 2 and code[i - 3].string == ".":
                before2 = "." + before2
            after = code[i + 1].string if i + 1 < len(code) else ""
            new = new_name(token.string, before, before2, after, token.start[0], token.start[1], depth)
            if new:
                edits.append((begin, end, new))
        elif token.type == tokenize.STRING:
            i = index[id(token)]
            is_doc = token.string.endswith('"""') and (i == 0 or code[i - 1].type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING))
            bare = token.string[1:-1]
            before = code[i - 1].string if i else ""
            j = i - 1
            while j > 1 and (code[j].type == tokenize.STRING or code[j].string == ","):
                j -= 1
            opened = [t.string for t in code[max(0, j - 2) : j + 1]]
            if opened[-2:] == ["parametrize", "("] and j == i - 1 or opened[-3:] in (["parametrize", "(", "("], ["parametrize", "(", "["]):
                new = NAME.sub(lambda m: names.tokens.get(m[1]) or m[1], token.string)
            elif bare in names.top and bare.lstrip("_")[:1].isupper() and before in ("->", ":", "[", "|", ",", "("):
                new = token.string[0] + names.top[bare] + token.string[-1]  # a forward reference
            elif before in ("->", ":", "[", "|") and re.fullmatch(r"[\w.|\[\], ]+", bare) and any(
                w in names.top and w.lstrip("_")[:1].isupper() for w in NAME.findall(bare)
            ):
                new = token.string[0] + NAME.sub(lambda m: names.top.get(m[1], m[1]), bare) + token.string[-1]
            else:
                new = string(token.string, names, new_name, token.start[0], is_doc)
            if new != token.string:
                edits.append((begin, end, new))
        elif token.type == tokenize.COMMENT:
            new = prose(token.string, names)
            if new != token.string:
                edits.append((begin, end, new))
        previous = token
    for begin, end, new in reversed(edits):
        text = text[:begin] + new + text[end:]
    if names.top and "__all__" in text:
        text = re.sub(
            r"^__all__ = \[[^\]]*\]",
            lambda m: re.sub(r'"(\w+)"', lambda n: f'"{names.top.get(n[1], n[1])}"', m[0]),
            text,
            flags=re.M,
        )
    return text


def prose(text, names):
    if names.tokens or names.top:

        def one(match):
            new = names.tokens.get(match[1]) or names.top.get(match[1])
            return f"`{new}`" if new else match[0]

        text = re.sub(r"`(\w+)`", one, text)
    for pattern, new, key in names.words:
        if not text.strip():
            break
        text, count = pattern.subn(new, text)
        names.hits["W", key] += count
    return text


def string(literal, names, new_name, line, is_doc):
    match = re.match(r"([A-Za-z]*)('''|\"\"\"|'|\")", literal)
    prefix, quote = match[1].lower(), match[2]
    body = literal[match.end() : -len(quote)]
    if body in names.strings:
        names.hits["S", body] += 1
        return literal[: match.end()] + names.strings[body] + quote
    if "f" not in prefix:
        return literal[: match.end()] + prose(body, names) + quote
    out, text, i = [], "", 0
    while i < len(body):
        c = body[i]
        if c in "{}" and body[i : i + 2] in ("{{", "}}"):
            text += body[i : i + 2]
            i += 2
        elif c == "{":
            out.append(("text", text))
            text = ""
            depth, j, q = 1, i + 1, None
            spec = None
            while j < len(body) and depth:
                d = body[j]
                if q:
                    q = None if d == q else q
                elif d in "'\"":
                    q = d
                elif d in "([{":
                    depth += 1
                elif d in ")]}":
                    depth -= 1
                elif depth == 1 and d in ":!" and body[j + 1 : j + 2] != "=" and spec is None:
                    spec = j
                j += 1
            stop = j - 1
            expr, rest = body[i + 1 : spec or stop], body[spec or stop : stop]
            out.append(("expr", expr))
            out.append(("spec", rest))
            i = j
        else:
            text += c
            i += 1
    out.append(("text", text))
    result = ""
    # words are replaced in text pieces; names in the fields
    for kind, piece in out:
        if kind == "text":
            result += prose(piece, names) if piece not in names.strings else names.strings[piece]
        elif kind == "expr":
            result += "{" + _fields(piece, names, new_name, line)
        else:
            result += re.sub(r"\{([^{}]+)\}", lambda m: "{" + _fields(m[1], names, new_name, line) + "}", piece) + "}"
    return literal[: match.end()] + result + quote


def _fields(expr, names, new_name, line):
    pieces = re.split(r"('[^']*'|\"[^\"]*\")", expr)
    for k in range(0, len(pieces), 2):
        piece = pieces[k]

        def one(m, piece=piece):
            a, b = m.span()
            left = piece[:a].rstrip()
            before = left[-1:] if left else ""
            before2 = (re.search(r"(\w+)\s*\.$", left) or [None, ""])[1] if before == "." else ""
            right = piece[b:].lstrip()
            after = right[:1] if right[:2] != "==" else "=="
            depth = piece[:a].count("(") - piece[:a].count(")")
            return new_name(m[1], before, before2, after, line, 0, depth) or m[1]

        pieces[k] = NAME.sub(one, piece)
    for k in range(1, len(pieces), 2):
        inner = pieces[k][1:-1]
        if inner in names.strings:
            pieces[k] = pieces[k][0] + names.strings[inner] + pieces[k][0]
    return "".join(pieces)


@functools.lru_cache(maxsize=None)
def in_globs(path, globs):
    """`globs`: one or several, of paths from the root; `!` before one excludes."""
    if isinstance(globs, str):
        globs = globs.split()
    path, found = str(path), False
    for glob in globs:
        if glob.startswith("!"):
            if fnmatch.fnmatch(path, glob[1:]):
                return False
        elif fnmatch.fnmatch(path, glob):
            found = True
    return found or all(g.startswith("!") for g in globs)


def near(area):
    """The globs of an area: its code and what tests it."""
    return f"platform/trainrig/{area}/* tests/{area}/*"


def patch(tree, patches):
    for path, old, new in patches:
        file = tree / path
        if not file.exists():
            say(f"patch: no file {path}")
            continue
        text = file.read_text(encoding="utf-8")
        if old not in text:
            say(f"patch: {path}: not found: {old[:70]!r}")
            continue
        file.write_text(text.replace(old, new), encoding="utf-8")


LIMIT = 100


def reflow(text):
    """`text` of a Python file with comments, docstrings and messages that became too long broken."""
    if all(len(line) <= LIMIT for line in text.splitlines()):
        return text
    for _ in range(200):
        lines = text.splitlines(keepends=True)
        long = next((i for i, line in enumerate(lines) if len(line.rstrip("\n")) > LIMIT and not line.rstrip().endswith("# ")), None)
        done = False
        for i, line in enumerate(lines):
            if len(line.rstrip("\n")) > LIMIT and "noqa" not in line:
                new = _broken(lines, i)
                if new is not None:
                    text, done = "".join(new), True
                    break
        if not done:
            return text
    return text


def _broken(lines, i):
    line = lines[i].rstrip("\n")
    indent = line[: len(line) - len(line.lstrip())]
    text = "".join(lines)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for k, token in enumerate(tokens):
        if token.type == tokenize.COMMENT and token.start[0] == i + 1:
            if line.lstrip().startswith("#"):
                at = line.rfind(" ", 0, LIMIT + 1)
                if at <= len(indent) + 2:
                    return None
                rest = line[at + 1 :]
                follows = lines[i + 1] if i + 1 < len(lines) else ""
                if follows.startswith(indent + "# ") and follows[len(indent) + 2 :].strip() and len(line) > LIMIT:
                    after = indent + "# " + rest + " " + follows[len(indent) + 2 :]
                    return [*lines[:i], line[:at] + "\n", after, *lines[i + 2 :]]
                return [*lines[:i], line[:at] + "\n", indent + "# " + rest + "\n", *lines[i + 1 :]]
            if re.match(r"#\s*(type:|noqa|pragma)", token.string):
                return None
            code = line[: token.start[1]].rstrip()
            return [*lines[:i], indent + token.string + "\n", code + "\n", *lines[i + 1 :]]
        if token.type == tokenize.STRING and token.start[0] <= i + 1 <= token.end[0]:
            if token.string.lstrip("rRbBfF").startswith('"""'):
                previous = next((t for t in reversed(tokens[:k]) if t.type not in (tokenize.COMMENT, tokenize.NL)), None)
                if previous is not None and previous.type not in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING):
                    return None
                if i + 1 == token.end[0] and len(line) - 3 <= LIMIT and line.endswith('"""'):
                    return [*lines[:i], line[:-3].rstrip() + "\n", indent + '"""\n', *lines[i + 1 :]] if token.start[0] != token.end[0] else [
                        *lines[:i], line[: line.rfind(" ", 0, LIMIT)] + "\n", indent + line[line.rfind(" ", 0, LIMIT) + 1 :] + "\n", *lines[i + 1 :]]
                at = line.rfind(" ", 0, LIMIT + 1)
                if at <= len(indent) + 3:
                    return None
                rest = line[at + 1 :]
                follows = lines[i + 1] if i + 1 < len(lines) else ""
                joins = i + 1 < token.end[0] and follows.strip() and follows.startswith(indent) and follows.strip() != '"""' and not follows.lstrip().startswith(("- ", "* ")) and follows[len(indent) : len(indent) + 1] != " "
                if joins:
                    return [*lines[:i], line[:at] + "\n", indent + rest + " " + follows[len(indent) :], *lines[i + 2 :]]
                return [*lines[:i], line[:at] + "\n", indent + rest + "\n", *lines[i + 1 :]]
            if token.start[0] == i + 1 and token.end[1] > LIMIT and line.lstrip().startswith(token.string[:3]):
                match = re.match(r"([A-Za-z]*)(\"|')", token.string)
                head = match[1] + match[2]
                at = line.rfind(" ", 0, LIMIT - 2)
                while at > token.start[1] and line[token.start[1] : at].count("{") != line[token.start[1] : at].count("}"):
                    at = line.rfind(" ", 0, at)
                if at <= token.start[1] + 10:
                    return None
                return [*lines[:i], line[: at + 1] + match[2] + "\n", indent + head + line[at + 1 :] + "\n", *lines[i + 1 :]]
    return None


@functools.lru_cache(maxsize=None)
def word_pattern(old):
    left = r"(?<![\w])" if old[0].isalnum() or old[0] == "_" else ""
    right = r"(?![\w])" if old[-1].isalnum() or old[-1] == "_" else ""
    return re.compile(left + re.sub(r"(\\ )+", r"\\s+", re.escape(old)) + right)


def name_step(tree, rules):
    files = [p for p in tracked(tree) if is_text(p)]
    modules = {}
    for path in files:
        if path.suffix == ".py" and path.is_relative_to(PACKAGE):
            modules["trainrig." + module_of(path) if module_of(path) else "trainrig"] = path
    # names: module -> {old: new}
    by_module = collections.defaultdict(dict)
    for full, new in rules.names:
        module, _, name = full.rpartition(".")
        module = f"trainrig.{module}"
        if module not in modules:
            say(f"names: no module {module}")
            continue
        by_module[module][name] = new
    reexported = exports(tree, modules, by_module)
    used = collections.Counter()
    # a rule of words can match only where all its words are, or are brought by another rule
    introduced = {w for _, n, _ in [*rules.words, *rules.tokens] for w in re.findall(r"\w+", n if isinstance(n, str) else "")}
    introduced |= {n for _, n in rules.names}
    for path in files:
        text = (tree / path).read_text(encoding="utf-8")
        present = introduced | set(re.findall(r"\w+", text))
        words = [
            (word_pattern(o) if not hasattr(o, "pattern") else o, n, (str(o), g))
            for o, n, g in rules.words
            if (hasattr(o, "pattern") or present.issuperset(re.findall(r"\w+", o))) and in_globs(path, g)
        ]
        strings = {o: n for o, n, g in rules.strings if in_globs(path, g)}
        if path.suffix != ".py":
            names = Names(words=words, strings=strings)
            new = prose(text, names)
            for full, new_name in rules.names:
                new = new.replace(f"trainrig.{full}", f"trainrig.{full.rpartition('.')[0]}.{new_name}")
        else:
            tokens = {o: n for o, n, g in rules.tokens if in_globs(path, g)}
            top, attributes, import_edits = bindings(path, text, modules, by_module, reexported)
            names = Names(tokens=tokens, top=top, attributes=attributes, strings=strings, words=words)
            taken = set(NAME.findall(text))
            for old, new_name in top.items():
                if new_name in taken and new_name not in top and old in taken:
                    say(f"names: {path}: {old} -> {new_name}, which the file has already")
            def program(body):
                try:
                    inner_top, inner_attributes, inner_edits = bindings(path, body, {}, by_module, reexported, modules)
                except SyntaxError:
                    for (_, name), fresh in reexported.items():
                        if re.search(rf"import .*\b{name}\b", body):
                            body = re.sub(rf"(?<![\w.]){name}(?!\w)", fresh, body)
                    return body
                inner = Names(tokens=tokens, top=inner_top, attributes=inner_attributes)
                return rewrite(inner_edits(body), inner)

            try:
                new = rewrite(import_edits(in_strings(text, program)), names)
            except (SyntaxError, tokenize.TokenError) as error:
                say(f"names: {path}: {error}")
                continue
            new = re.sub(
                r'(?<=")([a-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)(?=")',
                lambda m: f"{m[1]}:{by_module.get('trainrig.' + m[1].removeprefix('trainrig.'), {}).get(m[2], m[2])}",
                new,
            )
        used.update(names.hits)
        if new != text:
            (tree / path).write_text(new, encoding="utf-8")
    for old, _, globs in rules.tokens:
        if not used[old]:
            say(f"tokens: never met: {old} in {globs}")
    for old, _, globs in rules.strings:
        if not used["S", old]:
            say(f"strings: never met: {old!r} in {globs}")
    for old, _, globs in rules.words:
        if not used["W", (str(old), globs)]:
            say(f"words: never met: {old!r} in {globs}")
    for full, new in rules.names:
        if not used[full.rpartition(".")[2]]:
            say(f"names: never met: {full}")
    for globs, pattern, new in rules.regexes:
        hits = 0
        for path in files:
            if in_globs(path, globs):
                text = (tree / path).read_text(encoding="utf-8")
                changed, count = re.subn(pattern, new, text, flags=re.M)
                hits += count
                if count:
                    (tree / path).write_text(changed, encoding="utf-8")
        if not hits:
            say(f"regex: never met: {pattern} in {globs}")
    patch(tree, rules.patches)
    for hook in rules.name_hooks:
        hook(tree, say)
    for path in sorted([*(HERE / "files").rglob("*.py"), *(HERE / "files").rglob("*.md")]):
        target = tree / path.relative_to(HERE / "files")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text())
        git(tree, "add", str(target.relative_to(tree)))


def exports(tree, modules, by_module):
    """(package, name) of what a package's __init__ imports from where it is renamed -> new."""
    out = dict(((m, n), new) for m, names in by_module.items() for n, new in names.items())
    for _ in range(3):
        for module, path in modules.items():
            for node in ast.walk(ast.parse((tree / path).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        new = out.get((node.module, alias.name))
                        if new and not alias.asname:
                            out[module, alias.name] = new
    return out


def bindings(path, text, modules, by_module, reexported, known=None):
    """What the names of other modules are called in this one."""
    known = known or modules
    tree = ast.parse(text)
    top, attributes, edits = {}, {}, []
    for module, names in by_module.items():
        if modules.get(module) == path:
            top.update(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("trainrig"):
            for alias in node.names:
                new = reexported.get((node.module, alias.name))
                if new:
                    if alias.asname:
                        edits.append((alias.lineno, alias.col_offset, alias.name, new))
                    else:
                        top[alias.name] = new
                full = f"{node.module}.{alias.name}"
                if full in known:
                    for (m, name), fresh in reexported.items():
                        if m == full:
                            attributes[alias.asname or alias.name, name] = fresh

    def import_edits(text):
        lines = text.splitlines(keepends=True)
        for line, col, old, new in sorted(edits, reverse=True):
            row = lines[line - 1]
            raw = row.encode()
            assert raw[col:].startswith(old.encode())
            lines[line - 1] = (raw[:col] + new.encode() + raw[col + len(old.encode()) :]).decode()
        return "".join(lines)

    return top, attributes, import_edits


def main():
    step, tree = sys.argv[1], Path(sys.argv[2]).resolve()
    sys.path.insert(0, str(HERE))
    rules = Rules()
    if step == "moves":
        Moves(tree, rules).run()
    else:
        name_step(tree, rules)
    for path in tracked(tree):
        if path.suffix == ".py" and path.parts[0] in ("platform", "tests", "jobs"):
            text = (tree / path).read_text(encoding="utf-8")
            try:
                new = reflow(text)
                ast.parse(new)
            except (SyntaxError, tokenize.TokenError) as error:
                say(f"reflow: {path}: {error}")
                continue
            if new != text:
                (tree / path).write_text(new, encoding="utf-8")
    ruff = tree / ".venv/bin/ruff"
    for command in ("check --fix --select I,F401,RUF022 -q", "format -q", "check -q"):
        done = subprocess.run([ruff, *command.split(), "."], cwd=tree, capture_output=True, text=True)
        if done.returncode and command == "check -q":
            say("ruff:\n" + (done.stdout + done.stderr)[:3000])
    python = tree / ".venv/bin/python"
    if step == "names" and python.exists():  # docs/run-files.md and the schemas
        done = subprocess.run([python, "-m", "trainrig.run_file_pages"], cwd=tree, capture_output=True, text=True)
        if done.returncode:
            say(f"run_file_pages: {done.stderr[-2000:]}")
    git(tree, "add", "-A", "platform", "tests", "jobs", "docs", "cluster", "pyproject.toml", "README.md", "CHANGELOG.md")
    print("\n".join(reports) or "every rule was met")


main()
