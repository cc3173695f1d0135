"""A folder of pictures for the tests of finding and encoding them."""

import pytest
from small_pictures import content


@pytest.fixture
def folder(tmp_path):
    """Ten pictures."""
    (tmp_path / "pictures").mkdir()
    for number in range(10):
        (tmp_path / "pictures" / f"{number}.png").write_bytes(content(number))
    return tmp_path / "pictures"
