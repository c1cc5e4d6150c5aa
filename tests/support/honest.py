"""Correct programs, with the kinds of tests that rows have, and tests that cannot be run."""

# ruff: noqa: E501 - programs as they are

STACK = """
class StackError(ValueError):
    def __init__(self, code): super().__init__(f"code {code}"); self.code = code
class Stack:
    kind = "stack"
    def __init__(self, items=()): self.items = list(items)
    def push(self, item): self.items.append(item); return self
    def pop(self):
        if not self.items: raise StackError(7)
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, place): return self.items[place]
    def __add__(self, other): return Stack(self.items + other.items)
class Small(Stack): pass
"""
HONEST = {
    "asserts": ("def add(a, b): return a + b", "assert add(1, 2) == 3\nassert not add(1, -1)"),
    "check of HumanEval": (
        "from typing import List\nimport math\ndef root(xs: List[float]): return math.sqrt(xs[0])",
        "METADATA = {}\ndef check(candidate):\n    import copy\n    xs = [4.0]\n"
        "    assert abs(candidate(copy.deepcopy(xs)) - 2) < 1e-9 and math.sqrt(4) == 2\n"
        "    given: List[float] = [9]\n    assert candidate(xs=given) == 3\ncheck(root)",
    ),
    "helpers of the prompt": (
        "def poly(xs, x): return sum(c * x**i for i, c in enumerate(xs))\n"
        "def zero(xs): return -xs[0] / xs[1]",
        "assert abs(poly([6, 2], zero([6, 2]))) < 1e-9",
    ),
    "a built-in name": ("def sum(a, b): return a + b", "assert sum(1, 2) == 3"),
    "set-up code": (
        "class Node:\n    def __init__(self, data): self.data = data; self.left = None\n"
        "def height(node): return 1 + height(node.left) if node else 0",
        "root = Node(1)\nroot.left = Node(2)\nassert height(root) == 2\nassert root.left.data == 2",
    ),
    "every plain value": (
        "def same(x): return x",
        "for x in (None, True, 0, -(2**70), 1.5, -0.0, float('inf'), 1j, 'a\\ud800\\n', b'\\xff', "
        "bytearray(b'a'), (1, (2,)), [1, [2]], {1: 'a', (1, 2): [3]}, {1, 2}, frozenset({3}), "
        "range(3), int, ValueError):\n"
        "    y = same(x)\n    assert y == x and type(y) is type(x) and repr(y) == repr(x)",
    ),
    "values of the library": (
        "from collections import Counter, OrderedDict, defaultdict, deque, namedtuple\n"
        "from decimal import Decimal\nfrom fractions import Fraction\nimport datetime, enum\n"
        "class Colour(enum.IntEnum):\n    RED = 3\n"
        "def make(): return [Counter('aab'), OrderedDict(a=1), defaultdict(list, a=[1]),"
        " deque([1], 3), namedtuple('P', 'x y')(1, 2), Decimal('1.10'), Fraction(1, 3),"
        " datetime.date(2026, 1, 2), datetime.timedelta(days=1), Colour.RED]",
        "import datetime\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
        "assert make()[:5] == [{'a': 2, 'b': 1}, {'a': 1}, {'a': [1]}, deque([1]), (1, 2)]\n"
        "assert make()[5:] == [Decimal('1.1'), Fraction(1, 3), datetime.date(2026, 1, 2), "
        "datetime.timedelta(1), 3]\nassert make()[0].most_common(1) == [('a', 2)]",
    ),
    "arguments that change": (
        "def sort(xs): xs.sort(); return xs\ndef turn(rows):\n"
        "    for row in rows: row.reverse()\n"
        "def put(d, k): d.setdefault(k, []).append(k)",
        "xs = [3, 1, 2]\nassert sort(xs) is xs and xs == [1, 2, 3]\n"
        "row = [1, 2]\nturn([row, row, [3]])\nassert row == [1, 2]\n"
        "turn([row])\nassert row == [2, 1]\nd = {}\nput(d, 1)\nput(d, 1)\nassert d == {1: [1, 1]}",
    ),
    "exceptions": (
        STACK,
        "import unittest\ntry: Stack().pop()\nexcept StackError as error: assert error.code == 7\n"
        "else: assert False\nassert issubclass(StackError, ValueError)\n"
        "case = unittest.TestCase()\nwith case.assertRaises(ValueError) as caught: Stack().pop()\n"
        "assert str(caught.exception) == 'code 7'\ncase.assertRaises(IndexError, Stack([1]).__getitem__"
        " if False else (lambda: Stack([1])[5]))",
    ),
    "objects": (
        STACK,
        "s = Stack([1])\nassert s.push(2) is s and len(s) == 2 and s.pop() == 2 and s.items == [1]\n"
        "assert isinstance(s, Stack) and isinstance(Small(), Stack) and Stack.kind == 'stack'\n"
        "assert list(s) == [1] and s[0] == 1 and (s + Small([4])).items == [1, 4] and 1 in s\n"
        "s.items = [7, 8]\nassert len(s) == 2 and s == s and s != Stack([7, 8])\n"
        "assert not hasattr(s, 'missing') and not Stack() and {s: 1}[s] == 1",
    ),
    "unittest": (
        "def add(a, b): return a + b",
        "import unittest\nclass Adds(unittest.TestCase):\n"
        "    def test_it(self): self.assertEqual(add(1, 2), 3)\n"
        "suite = unittest.defaultTestLoader.loadTestsFromTestCase(Adds)\n"
        "assert unittest.TextTestRunner().run(suite).wasSuccessful()",
    ),
    "iterators": (
        "def count():\n    n = 0\n    while True: yield (n := n + 1)\n"
        "def evens(xs): return filter(lambda x: x % 2 == 0, xs)",
        "import itertools\nassert list(itertools.islice(count(), 3)) == [1, 2, 3]\n"
        "assert list(evens(range(5))) == [0, 2, 4] and next(iter(evens(x for x in [1, 2]))) == 2",
    ),
    "functions given and returned": (
        "def compose(f, g): return lambda x: f(g(x))\ndef apply(f, *xs): return [f(x) for x in xs]",
        "assert compose(lambda x: x + 1, lambda x: 2 * x)(5) == 11\n"
        "assert apply(len, 'a', 'bc') == [1, 2]\ndef bad(x): raise KeyError(x)\n"
        "try: apply(bad, 3)\nexcept KeyError as error: assert error.args == (3,)\nelse: assert 0",
    ),
    "objects of the tests": (
        "def total(node):\n    found = 0\n    while node: found += node.value; node = node.next\n"
        "    return found\ndef grow(node): node.value = node.double(); return node",
        "class Node:\n    def __init__(self, value, next=None):\n"
        "        self.value = value\n        self.next = next\n"
        "    def double(self): return 2 * self.value\n"
        "node = Node(1, Node(2))\nassert total(node) == 3\nassert grow(node) is node and node.value == 2",
    ),
    "printing": (
        "def greet(name): print('hello', name)",
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as said: greet('you')\n"
        "assert said.getvalue() == 'hello you\\n'",
    ),
    "standard input and output": (
        "import sys\nn = int(input())\nprint(sum(map(int, sys.stdin.read().split())) * n)\nsys.exit(0)",
        "assert run_program('2\\n1 2 3\\n').split() == ['12']\nassert run_program('1\\n5') == '5\\n'",
    ),
    "threads and the library": (
        "import threading, math, re, json, hashlib, random, decimal, heapq, bisect, string\n"
        "def go():\n    found = []\n    t = threading.Thread(target=found.append, args=[math.isqrt(9)])\n"
        "    t.start(); t.join()\n    return found",
        "import threading\nassert go() == [3]\nt = threading.Thread(target=go)\nt.start()\nt.join()",
    ),
}
UNFIT = {
    "a copy": ("class A: pass", "import copy\ncopy.deepcopy(A())", "cannot be copied"),
    "equality of objects": (
        "class A:\n    def __eq__(self, other): return True",
        "assert A() == A()",
        "AssertionError",
    ),
    "insides": ("def f(): pass", "f.__globals__", "of another process cannot be read"),
    "a missing name": ("def f(): pass", "g()", "name 'g' is not defined"),
}
