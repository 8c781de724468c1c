# One image for all parts: `tilecore serve | coordinator | migrate | ...`.
FROM python:3.11-slim-bookworm

ARG TORCH=torch==2.13.0
# "postgres,cuda,cuda-runtime" measures on NVIDIA GPUs; "cuda" compiles for them.
ARG EXTRAS=postgres,cuda
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

WORKDIR /opt/tilecore
COPY pyproject.toml constraints.txt README.md ./
COPY tilecore tilecore
COPY recommender recommender
COPY workers workers
COPY db db
COPY tuner_service tuner_service

# binutils: the linker of CPU kernels, without which workers compile none.
RUN apt-get update && apt-get install -y --no-install-recommends binutils \
 && rm -rf /var/lib/apt/lists/*
RUN pip install -c constraints.txt ${TORCH} \
 && pip install -c constraints.txt ".[${EXTRAS}]" \
 && useradd --create-home --uid 10001 tilecore \
 && install -d -o tilecore /var/lib/tilecore \
 && install -d -m 1777 /run/lock

USER tilecore
ENV TILECORE_DATA_DIR=/var/lib/tilecore TILECORE_EXECUTOR=local RAY_USAGE_STATS_ENABLED=0
VOLUME /var/lib/tilecore
EXPOSE 8711
ENTRYPOINT ["tilecore"]
CMD ["serve", "--host", "0.0.0.0"]
