"""What schemathesis cannot know of the document: strings of the format `uri` that may be called."""

import schemathesis
from hypothesis import strategies as st

schemathesis.openapi.format(
    "uri",
    st.from_regex(r"https://[a-z]{1,20}\.example(/[a-z]{0,20})?", fullmatch=True),
)
