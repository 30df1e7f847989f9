# Two images from one file:
#   docker build --target server  -t schedulemesh/server  .
#   docker build --target sidecar -t schedulemesh/sidecar .

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o /server ./cmd/server

# The control plane: one static program.
FROM alpine:3 AS server
RUN adduser -D -u 10001 mesh
COPY --from=build /server /usr/local/bin/server
USER mesh
EXPOSE 8080
ENTRYPOINT ["/usr/local/bin/server"]
CMD ["serve"]

# Ray and the sidecar, which is a driver on a node of its cluster.
FROM python:3.12-slim AS sidecar
RUN useradd --create-home --uid 10001 mesh
WORKDIR /opt/schedulemesh
COPY python/requirements.lock python/requirements.lock
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r python/requirements.lock
COPY python python
RUN pip install --no-cache-dir --no-deps --no-build-isolation ./python
COPY deploy/ray-node /usr/local/bin/ray-node
USER mesh
ENV RAY_USAGE_STATS_ENABLED=0 PYTHONUNBUFFERED=1
EXPOSE 6379 8265 9010
ENTRYPOINT ["/usr/local/bin/ray-node"]
