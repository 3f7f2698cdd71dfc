"""The environment variables of a replica which say what vLLM's configuration does not."""

#: The model's `hang_seconds`, how many of vLLM's seats are spare, the same part of its KV cache,
#: and how many front processes there are.
HANG_SECONDS_VARIABLE = "BATCHYARD_HANG_SECONDS"
SPARE_SEATS_VARIABLE = "BATCHYARD_SPARE_SEATS"
#: vLLM's own: which part of a GPU each worker has.
SHARE_VARIABLE = "VLLM_RAY_PER_WORKER_GPUS"
SPARE_KV_VARIABLE = "BATCHYARD_SPARE_KV"
FRONTS_VARIABLE = "BATCHYARD_FRONTS"
#: The same for live calls: how many of vLLM's seats are theirs alone, and the ports, `first-last`,
#: of which the replica's door takes one. Neither is set where a model takes no live calls.
LIVE_SEATS_VARIABLE = "BATCHYARD_LIVE_SEATS"
LIVE_PORTS_VARIABLE = "BATCHYARD_LIVE_PORTS"
#: What live calls are to have, in milliseconds: until the first token, and from one to the next.
LIVE_GOALS_VARIABLE = "BATCHYARD_LIVE_GOALS"
#: Whether the core is to be a fork of a process that has imported vLLM.
FORKED_CORE_VARIABLE = "BATCHYARD_FORKED_CORE"
#: The folder of this machine that a replica loads the model from; not set for one of the hub.
MODEL_FOLDER_VARIABLE = "BATCHYARD_MODEL_FOLDER"
#: For how many seconds rows and live calls may go on in a replica that Serve stops.
DRAIN_SECONDS_VARIABLE = "BATCHYARD_DRAIN_SECONDS"
#: How far batches give way: the part that may stay free, and the seconds before the end of a window
#: within which they do not, or none.
LIVE_YIELDING_VARIABLE = "BATCHYARD_LIVE_YIELDING"
