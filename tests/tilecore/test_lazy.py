"""cached_property computes once per object, whichever Python it is."""

from tilecore.lazy import cached_property


class Counted:
    def __init__(self):
        self.calls = 0

    @cached_property
    def value(self):
        """What is computed."""
        self.calls += 1
        return [self.calls]


def test_a_property_is_computed_when_it_is_first_read_and_kept():
    one, other = Counted(), Counted()
    assert one.calls == 0
    assert one.value is one.value
    assert (one.calls, other.calls, other.value) == (1, 0, [1])
    del one.value
    assert one.value == [2]
    assert Counted.value.__doc__ == "What is computed."
