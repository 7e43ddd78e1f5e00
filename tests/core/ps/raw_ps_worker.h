// A worker of a parameter server that speaks the messages by hand.
#ifndef TFDIST_TESTS_CORE_PS_RAW_PS_WORKER_H_
#define TFDIST_TESTS_CORE_PS_RAW_PS_WORKER_H_

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/raw_peer.h"
#include "core/ps/protocol/message.h"
#include "ps/server.h"

namespace tfdist::testing {

using namespace tfdist::ps;

using Floats = std::vector<float>;

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
std::vector<T> Values(std::string_view bytes) {
  REQUIRE(bytes.size() % sizeof(T) == 0);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline std::string MessageBytes(MessageType type, uint64_t number, const std::string& meta,
                                const std::string& payload = "") {
  FrameHeader header = HeaderOf(type, number);
  header.meta_bytes = static_cast<uint32_t>(meta.size());
  header.payload_bytes = payload.size();
  return Bytes(header, meta + payload);
}

struct RawAnswer {
  Status status;
  std::string meta, payload;
};

inline ServerOptions Options(Mode mode, int workers) {
  ServerOptions options;
  options.schedule.mode = mode;
  options.schedule.workers = workers;
  options.schedule.num_aggregate = workers;
  options.trace_events = 1000;
  return options;
}

inline OptimizerConfig Sgd() { return {}; }

class RawPsWorker {
 public:
  RawPsWorker(const Server& server, int rank, uint64_t process = 0, bool local = false)
      : RawPsWorker(server.port(), server.incarnation(), rank, process, local) {}
  RawPsWorker(int port, uint64_t of_server, int rank, uint64_t process = 0, bool local = false)
      : incarnation(of_server), peer_(port, local) {
    REQUIRE(peer_.Introduce(static_cast<uint32_t>(rank), incarnation));
    const FrameHeader header = peer_.ReceiveHeader();
    REQUIRE((header.Is(FrameType::kWelcome) && (header.meta_bytes > 0) == local));
    welcome.resize(header.meta_bytes);
    peer_.Receive(welcome.data(), welcome.size());
    OpenReply reply;
    REQUIRE_OK(
        Decode(Ask(MessageType::kOpen, Encode(OpenRequest{process + 100 * rank + 1, 0})), &reply));
    REQUIRE(reply.incarnation == incarnation);
    clock = reply.clock;
  }

  RawPeer& peer() { return peer_; }

  // Sends a request without waiting; returns its number.
  uint64_t Request(MessageType type, const std::string& meta, const std::string& payload = "") {
    REQUIRE(peer_.Send(MessageBytes(type, ++last_number_, meta, payload)));
    return last_number_;
  }
  RawAnswer Await(uint64_t number) {
    while (answers_.count(number) == 0) Receive();
    RawAnswer answer = std::move(answers_.at(number));
    answers_.erase(number);
    return answer;
  }
  // Whether the answer is here, though others that were asked for later are.
  bool HasAnswer(uint64_t number) {
    Ask(MessageType::kSet, Encode(SetRequest{}));
    return answers_.count(number) != 0;
  }
  // The answer of the request that was sent last, all others of which have come; false if the
  // server has closed the connection instead.
  bool TryAwait(RawAnswer* answer) {
    char bytes[kFrameHeaderBytes];
    if (!peer_.TryReceive(bytes, sizeof(bytes))) return false;
    *answer = ReceiveRest(bytes);
    return true;
  }
  RawAnswer Try(MessageType type, const std::string& meta, const std::string& payload = "") {
    return Await(Request(type, meta, payload));
  }
  std::string Ask(MessageType type, const std::string& meta, const std::string& payload = "") {
    const RawAnswer answer = Try(type, meta, payload);
    REQUIRE_OK(answer.status);
    return answer.meta;
  }

  uint32_t Create(const std::string& name, DType dtype, uint64_t elements,
                  const std::string& value) {
    CreateReply reply;
    const CreateRequest request{{{name, dtype, elements, !value.empty()}}};
    REQUIRE_OK(Decode(Ask(MessageType::kCreate, Encode(request), value), &reply));
    REQUIRE(reply.shards.size() == 1);
    return reply.shards[0];
  }
  uint32_t Create(const std::string& name, const Floats& value) {
    return Create(name, DType::kFloat32, value.size(), Raw(value));
  }
  void Bind(const OptimizerConfig& config, uint32_t shard, std::vector<uint32_t> slots = {},
            double weight_decay = 0) {
    Ask(MessageType::kBind, Encode(BindRequest{config, {{shard, std::move(slots), weight_decay}}}));
  }

  uint64_t RequestPull(const std::vector<uint32_t>& shards, bool begins_step) {
    PullRequest request{begins_step, {}};
    for (const uint32_t shard : shards) request.entries.push_back({shard, versions[shard]});
    return Request(MessageType::kPull, Encode(request));
  }
  // The payload: the values of the changed shards.
  std::string AwaitPull(uint64_t number, const std::vector<uint32_t>& shards) {
    const RawAnswer answer = Await(number);
    REQUIRE_OK(answer.status);
    PullReply reply;
    REQUIRE_OK(Decode(answer.meta, &reply));
    REQUIRE(reply.versions.size() == shards.size());
    for (size_t i = 0; i < shards.size(); ++i) versions[shards[i]] = reply.versions[i];
    clock = reply.clock;
    return answer.payload;
  }
  std::string Pull(const std::vector<uint32_t>& shards, bool begins_step = true) {
    return AwaitPull(RequestPull(shards, begins_step), shards);
  }
  // The value of one shard, independent of earlier pulls.
  Floats Value(uint32_t shard, bool begins_step = false) {
    versions.erase(shard);
    return Values<float>(Pull({shard}, begins_step));
  }

  PushRequest NewPush(std::vector<PushRequest::Entry> entries, double learning_rate = 1) {
    PushRequest push;
    push.sequence = ++sequence;
    push.clock = clock;
    push.incarnation = incarnation;
    push.steps = {{learning_rate, static_cast<int64_t>(sequence)}};
    push.entries = std::move(entries);
    return push;
  }
  // Whether it was dropped.
  bool Push(const PushRequest& push, const std::string& payload) {
    PushReply reply;
    REQUIRE_OK(Decode(Ask(MessageType::kPush, Encode(push), payload), &reply));
    return reply.dropped;
  }
  template <typename T>
  bool Push(uint32_t shard, UpdateKind kind, const std::vector<T>& values,
            double learning_rate = 1) {
    return Push(NewPush({{shard, kind, 0, 0, 0}}, learning_rate), Raw(values));
  }
  bool PushRows(uint32_t shard, const std::vector<int64_t>& rows, const Floats& values,
                double learning_rate = 1) {
    const uint64_t width = rows.empty() ? 1 : values.size() / rows.size();
    return Push(NewPush({{shard, UpdateKind::kRows, 0, rows.size(), width}}, learning_rate),
                Raw(rows) + Raw(values));
  }

  uint64_t RequestReduce(uint64_t key, uint64_t execution, const Floats& values) {
    return Request(MessageType::kReduce,
                   Encode(ReduceRequest{key, execution, {DType::kFloat32}, {values.size()}}),
                   Raw(values));
  }
  Floats AwaitReduce(uint64_t number) {
    const RawAnswer answer = Await(number);
    REQUIRE_OK(answer.status);
    REQUIRE(answer.meta.empty());
    return Values<float>(answer.payload);
  }
  void Leave() { Ask(MessageType::kLeave, ""); }

  std::string welcome;  // the meta of the server's WELCOME
  uint64_t incarnation = 0, clock = 0, sequence = 0;
  std::map<uint32_t, uint64_t> versions;

 private:
  void Receive() {
    char bytes[kFrameHeaderBytes];
    peer_.Receive(bytes, sizeof(bytes));
    FrameHeader header;
    REQUIRE_OK(Decode(bytes, LimitsOfMessages, &header));
    REQUIRE(answers_.emplace(header.key, ReceiveRest(bytes)).second);
  }
  RawAnswer ReceiveRest(const char* bytes) {
    FrameHeader header;
    REQUIRE_OK(Decode(bytes, LimitsOfMessages, &header));
    RawAnswer answer;
    answer.meta.resize(header.meta_bytes);
    answer.payload.resize(header.payload_bytes);
    peer_.Receive(answer.meta.data(), answer.meta.size());
    peer_.Receive(answer.payload.data(), answer.payload.size());
    if (header.type == static_cast<uint8_t>(MessageType::kError)) {
      ErrorReply error;
      REQUIRE_OK(Decode(answer.meta, &error));
      answer.status = Status(error.code, error.message);
    } else {
      REQUIRE(header.type == static_cast<uint8_t>(MessageType::kOk));
    }
    return answer;
  }

  RawPeer peer_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, RawAnswer> answers_;
};

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_PS_RAW_PS_WORKER_H_
