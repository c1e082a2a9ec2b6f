"""The page about what works says what the tests say."""

from tests.feature_coverage import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.feature_coverage"


def test_no_feature_is_without_a_test_and_without_a_word_about_it() -> None:
    assert "not built" not in page()
