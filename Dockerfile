# The two commands in a container: `docker build -t parallax .`, then `docker run parallax` (the main job) or
# `docker run parallax make test`. Hosts of a job need the same image.
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ iproute2 make openssh-client procps \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /parallax
COPY . .
RUN make install
ENV PATH="/parallax/.venv/bin:$PATH"
CMD ["make", "demo"]
