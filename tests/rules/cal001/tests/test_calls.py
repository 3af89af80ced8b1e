import calls


def test_run():
    calls.run(1, 2, 3)
