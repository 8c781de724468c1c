"""``tilelang.carver``: what programs ask about the device. Templates of configs are not here.

TileLang's carver proposes configs for six templates on a live GPU; here that is the work of
``recommender``, for any program, by ``tilecore recommend`` or ``POST /v1/recommendations``.
"""
