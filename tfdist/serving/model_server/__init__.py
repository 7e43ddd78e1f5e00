"""A server of SavedModels with TensorFlow Serving's protocols; see docs/guides/model_server.md.

`versions` loads a model's newest versions, `models` answers requests with them, by `batching`.
`grpc_server` and `http_server` carry requests in `messages` and in JSON (`rest`).
"""
