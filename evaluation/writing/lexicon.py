"""Words of the online simulation: for requests, demonstrations, and to read `style` tokens as text."""

from sao.environments.style import STYLES

STYLE_WORDS: dict[str, tuple[str, ...]] = {
    "academic": (
        "furthermore",
        "hypothesis",
        "empirically",
        "methodology",
        "significant",
        "framework",
        "notwithstanding",
        "literature",
    ),
    "cute": ("cuddly", "yay", "teeny-tiny", "snuggles", "sweetie", "sparkly", "hugs", "fluffy"),
    "chuunibyou": (
        "dark-flame",
        "sealed-eye",
        "abyss",
        "forbidden-power",
        "prophecy",
        "shadow-blade",
        "chosen-one",
        "destiny-unleashed",
    ),
    "classical": ("thou", "hath", "verily", "whence", "thine", "behold", "o-muse", "beseech"),
}
NEUTRAL_WORDS = ("and", "the", "with", "there", "now", "then", "here", "also")
TOPIC_WORDS: dict[str, tuple[str, ...]] = {
    "rain": ("rain", "puddle", "umbrella"),
    "bread": ("bread", "oven", "dough"),
    "trains": ("train", "railway", "platform"),
    "gardens": ("garden", "rose", "hedge"),
    "the sea": ("sea", "wave", "tide"),
    "cats": ("cat", "whisker", "purr"),
    "mountains": ("mountain", "summit", "ridge"),
    "music": ("melody", "violin", "rhythm"),
    "the moon": ("moon", "lunar", "crater"),
    "books": ("book", "page", "library"),
    "winter": ("winter", "snow", "frost"),
    "coffee": ("coffee", "espresso", "roast"),
    "bicycles": ("bicycle", "pedal", "saddle"),
    "bees": ("bee", "honey", "hive"),
    "clocks": ("clock", "pendulum", "minute"),
    "rivers": ("river", "bank", "current"),
}
TOPICS = tuple(TOPIC_WORDS)
AUDIENCES = (
    "children",
    "neighbours",
    "students",
    "a friend",
    "travellers",
    "gardeners",
    "a newspaper",
    "a club",
    "engineers",
    "nurses",
    "sailors",
    "cooks",
    "a teacher",
    "musicians",
    "farmers",
    "a stranger",
)
assert tuple(STYLE_WORDS) == STYLES


def request(topic: str, audience: str, least: int, most: int) -> str:
    """What a writer of single words is asked for."""
    return (
        f"Write {least} to {most} words about {topic}, for {audience}. Single words are enough, no sentences "
        f"are asked for; at least two of the words are about {topic}, and none is about another subject."
    )
