# The binary is built in one stage and runs in another, which holds nothing
# but it and the certificates for TLS.
FROM rust:1.95-slim-trixie AS build
# librdkafka, zstd and OpenSSL are built from source.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ make perl \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /postonce
COPY . .
RUN cargo build --release --locked

FROM debian:trixie-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home --uid 10001 postonce
COPY --from=build /postonce/target/release/postonce /usr/local/bin/postonce
# By number, so that Kubernetes can see that it is not root.
USER 10001
EXPOSE 9464
ENTRYPOINT ["postonce"]
CMD ["--help"]
