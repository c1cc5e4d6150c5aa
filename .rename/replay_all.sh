# replay_all.sh TREE: both steps, a commit each. Run from outside of TREE, with this folder copied elsewhere.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
python3 "$here/apply.py" moves . ; git add -A; git commit -q -m "Move modules into rooms that say what they hold"
python3 "$here/apply.py" names . | grep -v "never met" || true; git add -A; git commit -q -m "Name things in the field's words"
