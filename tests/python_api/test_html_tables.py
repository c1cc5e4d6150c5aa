from trainrig.python_api.html_tables import render_html_table


def test_values_are_readable_and_escaped() -> None:
    shown = render_html_table("<b>", {"tokens": 12345, "of": {"web": 1.5, "a<b": 2}, "none": {}})
    assert "&lt;b&gt;" in shown
    assert "12,345" in shown
    assert "web 1.5, a&lt;b 2" in shown
    assert ">none<" in shown
