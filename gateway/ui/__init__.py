"""The page at /ui: HTML for people, made of the same functions as the API."""
