"""How long and how much is kept: numbers that Lua scripts share with Python. Pure."""

#: Data that only a live batch needs, after its end.
ENDED_BATCH_SECONDS = 86_400
#: An upload's record, after its end.
ENDED_UPLOAD_SECONDS = 86_400
#: A deleted file's place in the listing, for cursors that point to it.
DELETED_FILE_SECONDS = 86_400
#: A plan that its batch has not accepted.
UNUSED_PLAN_SECONDS = 86_400
#: Reserved objects, until they are swept or kept by a file.
RESERVED_SECONDS = 86_400

#: A batch's events, after its end. A rebuild announces younger ends again.
EVENT_HISTORY_SECONDS = 604_800
#: A batch's events while it lives.
MAX_EVENTS = 100

#: How long a webhook delivery is retried.
DELIVERY_WINDOW_SECONDS = 259_200
#: A delivery's record, from its creation, and from its end.
DELIVERY_SECONDS = 864_000
FINISHED_DELIVERY_SECONDS = 604_800
#: A delivery's place in its endpoint's listing.
LISTED_DELIVERY_SECONDS = 2_592_000
#: The newest attempts of a delivery.
MAX_ATTEMPTS = 30
#: Old signing secrets of an endpoint that may still be valid.
MAX_OLD_SECRETS = 4

#: The newest dead rows.
MAX_DEAD_ROWS = 10_000

#: What was used and what it cost, by the day.
SPENT_SECONDS = 34_560_000

#: What a price is for.
HOUR_SECONDS = 3600
#: What a lane has learned of its costs is halved beyond so many tokens.
MAX_COST_TOKENS = 100_000_000
#: Over about so many batches, the errors of predicted costs are averaged.
RECENT_BATCHES = 10

#: Deaths of engines are counted by the day, and so is the last use of an API key.
DAY_SECONDS = 86_400
#: The progress of a batch is published at most this often.
PROGRESS_MS = 1000
#: Marks of a batch's pace. Above that, every other one is dropped.
MAX_PACE_MARKS = 400
