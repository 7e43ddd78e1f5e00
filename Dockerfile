# The wheel is built in the first stage. The second one has no compiler, and no user root.
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
# The op library is for one release of TensorFlow, whose headers it is compiled with.
ARG TENSORFLOW=2.21
RUN pip install --no-cache-dir "tensorflow==${TENSORFLOW}.*" "setuptools>=70.1"
COPY . /src
WORKDIR /src
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim
COPY --from=build /wheels /wheels
# cryptography is for encrypted connections (--tls).
RUN pip install --no-cache-dir /wheels/*.whl "cryptography>=42" && rm -rf /wheels
# Its number, not its name: Kubernetes' runAsNonRoot cannot look up names.
RUN useradd --uid 10001 --create-home tfdist
USER 10001
WORKDIR /home/tfdist
ENV PYTHONUNBUFFERED=1
# As process 1 Python gets SIGTERM itself, without a shell between.
ENTRYPOINT ["python"]
