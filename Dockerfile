# syntax=docker/dockerfile:1
# The binary is built in one stage and runs in another, which holds nothing but it, the C
# library and the certificates for TLS: no shell, no package manager.
FROM rust:1.95-slim-trixie AS build
# librdkafka, zstd and OpenSSL are built from source. Which versions of these three build
# them does not matter, so they are not pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ make perl \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /postonce
COPY . .
# What was compiled and fetched once stays with the builder: a changed line builds one crate.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/postonce/target \
    cargo build --release --locked \
    && cp target/release/postonce /usr/local/bin/postonce

FROM gcr.io/distroless/cc-debian13:nonroot
COPY --from=build /usr/local/bin/postonce /usr/local/bin/postonce
# By number (nonroot), so that Kubernetes can see that it is not root.
USER 65532
EXPOSE 9464
# The image has no curl. Whoever runs another command than `consume` turns it off.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["postonce", "health"]
ENTRYPOINT ["postonce"]
CMD ["--help"]
