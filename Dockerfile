# Two images from one file:
#   docker build --target service -t headrace:service .    API, tasks, batches, beat, Flower, migrate: no torch
#   docker build --target engine  -t headrace:engine  .    the engine worker, with CUDA from PyPI's torch wheels
# The commands are those of the console script `headrace`, as outside a container.

FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 HEADRACE_DATA_DIR=/data
RUN useradd --system --uid 10001 --home-dir /data headrace && install -d -o headrace -g headrace -m 0700 /data
WORKDIR /app
COPY pyproject.toml setup.py README.md LICENSE ./
COPY api api
COPY db db
COPY kernels kernels
COPY migrations migrations
COPY workers workers
ENTRYPOINT ["headrace"]

FROM base AS engine
# The CPU kernels are compiled with the package, and Triton compiles its launchers at run time.
RUN apt-get update && apt-get install -y --no-install-recommends g++ libc6-dev && rm -rf /var/lib/apt/lists/*
# `engine,gpu` adds flash-attn, which compiles against a CUDA toolkit: give it a base image that has one.
ARG EXTRAS=engine
RUN pip install ".[${EXTRAS}]"
USER headrace
WORKDIR /data
CMD ["worker"]

FROM base AS service
RUN pip install .
USER headrace
WORKDIR /data
CMD ["api", "--host", "0.0.0.0"]
