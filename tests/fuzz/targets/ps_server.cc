// A parameter server: two workers send requests, cut anywhere and interleaved.
//
// Everything except the threads and the proofs is the server's own: the sessions with their
// streams, the parser of requests, the handlers, the store, tables and the redo log. One thread
// drives them, so that an input always takes the same way. Shards and tables have few names and
// ids, so that requests collide: a shard or table checked for one part of a request may be gone
// when the rest comes.
//
// Input: the server's options, then steps. A step sends a request, a part of one or bytes of any
// kind, or lets time pass, takes a snapshot, or breaks a connection. Sessions may end; answers must
// be frames of the protocol, and the server has to answer a new worker at the end.
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ps/server/handlers/request_handler.h"
#include "core/ps/server/session.h"
#include "fuzz.h"
#include "peer.h"
#include "scratch.h"
#include "testing.h"

namespace tfdist::fuzz::ps_server {
namespace {

using namespace ps;

constexpr int kWorkers = 2;
constexpr uint64_t kIncarnation = 77;
constexpr uint64_t kMaxPayload = 16 << 10;  // of a request whose payload is made

// Four configurations: all widths and numbers of slots differ.
TableConfig ConfigOf(uint32_t which) {
  TableConfig config;
  config.width = which == 3 ? 300 : 4;
  config.initializer = {InitializerKind::kConstant, 0.5, 0, 1};
  if (which == 1) config.optimizer.kind = OptimizerKind::kAdagrad;
  if (which == 2) config.optimizer.kind = OptimizerKind::kAdam;
  if (which == 3) config.rule = RowRule::kRowwiseAdagrad;
  return config;
}

std::string TableName(uint32_t which) { return StrCat("table", which); }

class Server final : public ReplyChannel {
 public:
  explicit Server(Input* input) : input_(*input) {
    ServerOptions options;
    options.schedule.mode = static_cast<Mode>(1 + input_.Below(3));
    options.schedule.workers = kWorkers;
    options.schedule.num_aggregate = 1 + static_cast<int>(input_.Below(kWorkers));
    options.schedule.staleness = static_cast<int>(input_.Below(2));
    options.schedule.elastic = options.schedule.mode == Mode::kSync && input_.Bit();
    const bool sync = options.schedule.mode == Mode::kSync;
    options.hogwild = !sync && input_.Bit();
    if (!sync) options.compensation = static_cast<Compensation>(input_.Below(4));
    if (options.hogwild && options.compensation != Compensation::kAdaDelay) {
      options.compensation = Compensation::kNone;
    }
    options.memory_budget = input_.Bit() ? 1 << 20 : 64 << 20;
    options.trace_events = 16;
    options.time.steady = [this] { return now_; };
    options.time.wall = [] { return 1e9; };
    store_ = std::make_unique<Store>(options, kWorkers);
    handler_ = std::make_unique<RequestHandler>(options, kIncarnation, store_.get(), this);
    Restore();
    if (input_.Bit()) {
      log_ = std::make_unique<testing::Scratch>();
      handler_->recovery().BeginLog(log_->path);
    }
  }
  ~Server() override {
    for (Peer& peer : peers_) End(&peer);
    if (log_ != nullptr) std::remove((log_->path + ".values").c_str());
  }

  void Run() {
    while (!input_.empty()) Step();
    for (Peer& peer : peers_) End(&peer);
    // The server still serves others.
    Peer& peer = peers_[0];
    Open(&peer);
    Write(&peer, Request(MessageType::kOpen, Encode(OpenRequest{12345, 0})));
    Write(&peer, Request(MessageType::kSet, Encode(SetRequest{})));
    CHECK((peer.session != nullptr && peer.answers == 2));
  }

 private:
  struct Peer {
    std::unique_ptr<Session> session;
    Fd socket;
    std::string received;  // of an answer that is not whole
    std::string waiting;   // the rest of a request
    bool local = false, ending = false;
    uint64_t answers = 0;
  };

  // ReplyChannel.
  void Deliver(uint64_t session, Answer answer) override {
    for (Peer& peer : peers_) {
      if (peer.session == nullptr || peer.session->client()->session != session) continue;
      peer.session->Send(std::move(answer));
    }
  }
  void Disconnect(uint64_t session) override {
    for (Peer& peer : peers_) {
      if (peer.session != nullptr && peer.session->client()->session == session) peer.ending = true;
    }
  }
  void WakeTimer() override {}

  // A table, whose slots a worker may reset, and shards.
  void Restore() {
    ServerSnapshot snapshot;
    std::unique_ptr<ps::Table> table;
    REQUIRE_OK(ps::Table::Create(ConfigOf(1), &table, TableName(0)));
    snapshot.tables.push_back(std::move(table));
    for (uint32_t i = 0; i < 2; ++i) {
      const auto block = std::make_shared<Block>(16 * sizeof(float));
      std::fill_n(block->data(), block->bytes(), '\0');
      snapshot.shards.push_back({StrCat("shard", i), DType::kFloat32, 16, block});
    }
    REQUIRE_OK(handler_->recovery().Restore(snapshot));
  }

  void Open(Peer* peer) {
    End(peer);
    SocketPair sockets(peer->local);
    peer->socket = std::move(sockets.theirs);
    const auto worker = static_cast<int>(peer - peers_);
    peer->session = std::make_unique<Session>(next_session_++, worker, std::move(sockets.ours),
                                              store_.get(), [this, peer](ClientRequest request) {
                                                auto answer = handler_->Execute(
                                                    peer->session->client(), std::move(request));
                                                if (answer) peer->session->Send(*std::move(answer));
                                                return Status();
                                              });
    peer->session->Flush();
    const std::string welcome = ReceiveAll(peer->socket);
    CHECK(welcome.size() >= kFrameHeaderBytes);
    if (peer->local && welcome.size() > kFrameHeaderBytes) {
      FrameHeader header;
      header.type = static_cast<uint8_t>(FrameType::kShared);
      Write(peer, FrameBytes(header, Encode(Sharing{true, false, exposed_.canary()})));
    }
  }
  void End(Peer* peer) {
    if (peer->session != nullptr) handler_->EndConnection(*peer->session->client(), "it ended");
    peer->session.reset();
    peer->socket.Reset();
    peer->received.clear();
    peer->waiting.clear();
    peer->ending = false;
    peer->answers = 0;
  }

  // Lets the server receive bytes, and answer.
  void Write(Peer* peer, const std::string& bytes) {
    Send(peer->socket, bytes);
    Turn();
  }
  void Turn() {
    for (Peer& peer : peers_) {
      if (peer.session == nullptr) continue;
      Status status = peer.session->Receive();
      peer.session->Unblock();
      peer.session->Flush();
      TakeAnswers(&peer);
      if (!status.ok() || peer.ending) End(&peer);
    }
  }
  // Answers are whole frames, with the contents of the request's type.
  void TakeAnswers(Peer* peer) {
    peer->received += ReceiveAll(peer->socket);
    while (peer->received.size() >= kFrameHeaderBytes) {
      FrameHeader header;
      CHECK_OK(Decode(peer->received.data(), LimitsOfMessages, &header));
      const size_t meta = kFrameHeaderBytes + header.meta_bytes, all = meta + header.payload_bytes;
      if (header.exposed == 0 && peer->received.size() < all) return;
      if (header.exposed != 0 && peer->received.size() < meta) return;
      if (header.type == static_cast<uint8_t>(MessageType::kError)) {
        ErrorReply error;
        CHECK_OK(Decode(peer->received.substr(kFrameHeaderBytes, header.meta_bytes), &error));
        CHECK(!error.message.empty());
      }
      if (header.type >= kFirstPsType) ++peer->answers;
      peer->received.erase(0, header.exposed == 0 ? all : meta);
    }
  }

  void Step() {
    Peer& peer = peers_[input_.Below(kWorkers)];
    switch (input_.Below(32)) {
      case 0:
        peer.local = input_.Bit();
        return Open(&peer);
      case 1:
        return End(&peer);
      case 2:
        now_ += input_.Real() > 1 ? 100 : 0.5;
        handler_->CheckTime(Clock::now());
        for (const auto& table : store_->tables()) table->Sweep(store_->clock().Now());
        return Turn();
      case 3:
        return Snapshot();
      case 4:  // bytes of any kind
        return Write(&peer, input_.Text(200));
      case 5:
      case 6:
      case 7:
      case 8:  // the rest of a request
        if (peer.session == nullptr) return;
        return Write(&peer, std::exchange(peer.waiting, ""));
      default:
        return Ask(&peer);
    }
  }

  // Sends a request, or the first part of one: the rest is sent later.
  void Ask(Peer* peer) {
    if (peer->session == nullptr) {
      Open(peer);
      Write(peer, Request(MessageType::kOpen, Encode(OpenRequest{1 + input_.Below(2), 0})));
    }
    if (peer->session == nullptr) return;
    std::string bytes = peer->waiting + SomeRequest(peer->local && input_.Bit());
    const uint32_t how = input_.Below(8);
    if (how == 0 && !bytes.empty()) bytes[input_.Below(256) % bytes.size()] ^= 1 << input_.Below(8);
    const size_t cut = how <= 3 ? bytes.size() : bytes.size() - input_.Below(256) % bytes.size();
    peer->waiting = bytes.substr(cut);
    Write(peer, bytes.substr(0, cut));
  }

  std::string Request(MessageType type, const std::string& meta, const std::string& payload = "",
                      bool exposes = false) {
    FrameHeader header = HeaderOf(type, ++number_);
    if (!exposes || payload.empty()) return FrameBytes(header, meta, payload);
    // The payload stays in this process; or in no memory that there is.
    std::string whole = meta;
    kept_.push_back(payload);
    header.payload_bytes = payload.size();
    void* const address = input_.Bit() ? kept_.back().data() : reinterpret_cast<void*>(4096);
    AppendExposed({{address, payload.size()}}, &header, &whole);
    return FrameBytes(header, whole);
  }

  // Ids, then bytes of any kind: floats.
  std::string Payload(uint64_t ids, uint64_t bytes) {
    std::string payload;
    if (ids > kMaxPayload / 8 || bytes > kMaxPayload) return payload;
    for (uint64_t i = 0; i < ids; ++i) {
      const int64_t id = input_.Below(8);
      payload.append(reinterpret_cast<const char*>(&id), sizeof(id));
    }
    payload.append(bytes, '\x3f');  // about 0.75, as float32
    if (input_.Below(16) == 0) payload.append(input_.Below(9), '\1');
    return payload;
  }

  static uint64_t BytesOfShard(const Shard* shard) { return shard == nullptr ? 0 : shard->bytes; }

  DType SomeDType() {
    return static_cast<DType>(1 + input_.Below(static_cast<uint32_t>(DType::kBytes)));
  }

  std::string SomeRequest(bool exposes) {
    switch (input_.Below(20)) {
      case 0:
        return Request(MessageType::kOpen, Encode(OpenRequest{input_.Below(3), input_.Number()}));
      case 1:
        return Create(exposes);
      case 2: {
        BindRequest bind;
        bind.config = ConfigOf(input_.Below(3)).optimizer;
        for (uint32_t i = input_.Below(3); i > 0; --i) {
          bind.entries.push_back({input_.Below(4), {}, input_.Real()});
          for (uint32_t j = input_.Below(4); j > 0; --j) {
            bind.entries.back().slots.push_back(input_.Below(4));
          }
        }
        return Request(MessageType::kBind, Encode(bind));
      }
      case 3: {
        PullRequest pull{input_.Bit(), {}};
        for (uint32_t i = input_.Below(4); i > 0; --i) {
          pull.entries.push_back({input_.Below(4), input_.Below(4)});
        }
        return Request(MessageType::kPull, Encode(pull));
      }
      case 4:
      case 5:
        return Push(exposes);
      case 6:
      case 7:
        return Values(exposes);
      case 8: {
        ReduceRequest reduce{input_.Below(2), input_.Below(3), {}, {}};
        uint64_t bytes = 0;
        for (uint32_t i = input_.Below(3); i > 0; --i) {
          reduce.dtypes.push_back(SomeDType());
          reduce.elements.push_back(input_.Number());
          bytes += BytesOf(reduce.dtypes.back(), reduce.elements.back()).value_or(0);
        }
        return Request(MessageType::kReduce, Encode(reduce), Payload(0, bytes), exposes);
      }
      case 9:
      case 15:
      case 16:
        return Table();
      case 10: {
        LookupRequest lookup{input_.Bit(), {}};
        uint64_t ids = 0;
        for (uint32_t i = input_.Below(3); i > 0; --i) {
          const auto wire = static_cast<DType>(1 + input_.Below(3));
          lookup.entries.push_back({input_.Below(3), input_.Number(), wire});
          ids += std::min(lookup.entries.back().count, kMaxPayload);
        }
        return Request(MessageType::kLookup, Encode(lookup), Payload(ids, 0), exposes);
      }
      case 11: {
        const uint64_t incarnation = input_.Bit() ? kIncarnation : input_.Number();
        return Request(MessageType::kScanRows,
                       Encode(ScanRowsRequest{input_.Below(3), incarnation, input_.Number(),
                                              input_.Number(), input_.Bit()}));
      }
      case 12:
      case 13:
      case 17:
      case 18:
        return Edit(exposes);
      case 14: {
        const FindRowsRequest find{input_.Below(3), input_.Number(), input_.Bit()};
        return Request(MessageType::kFindRows, Encode(find), Payload(find.count, 0), exposes);
      }
      default:
        return Elastic();
    }
  }

  std::string Create(bool exposes) {
    CreateRequest create;
    uint64_t bytes = 0;
    for (uint32_t i = input_.Below(3); i > 0; --i) {
      create.entries.push_back(
          {StrCat("shard", input_.Below(5)), SomeDType(), input_.Number(), input_.Bit()});
      const CreateRequest::Entry& entry = create.entries.back();
      if (entry.has_value) bytes += BytesOf(entry.dtype, entry.elements).value_or(0);
    }
    return Request(MessageType::kCreate, Encode(create), Payload(0, bytes), exposes);
  }

  std::string Push(bool exposes) {
    PushRequest push;
    push.sequence = input_.Below(32);
    push.clock = input_.Below(8);
    push.incarnation = input_.Bit() ? kIncarnation : 0;
    push.steps = {{input_.Real(), input_.Below(4)}};
    push.of_tasks = input_.Bit();
    if (push.of_tasks && input_.Bit()) push.commits = {{input_.Below(2), 0, input_.Below(5)}};
    push.unit = {input_.Below(2), input_.Below(3), input_.Below(3)};
    std::string payload;
    for (uint32_t i = input_.Below(4); i > 0; --i) {
      PushRequest::Entry entry;
      entry.shard = input_.Below(4);
      entry.kind = static_cast<UpdateKind>(1 + input_.Below(5));
      if (entry.has_rows()) {
        entry.rows = input_.Number();
        entry.width = input_.Below(2) == 0 ? 4 : input_.Number();
        if (entry.kind == UpdateKind::kTableRows) {
          entry.wire = static_cast<DType>(1 + input_.Below(3));
        }
        const uint64_t row =
            entry.width *
            (entry.kind == UpdateKind::kTableRows ? ByteSize(entry.wire) : sizeof(float));
        const bool fits = row < kMaxPayload && entry.rows < kMaxPayload;
        payload += Payload(entry.rows, fits ? entry.rows * row : 0);
      } else {
        payload += Payload(0, BytesOfShard(store_->Find(entry.shard)));
      }
      push.entries.push_back(entry);
    }
    return Request(MessageType::kPush, Encode(push), payload, exposes);
  }

  // SET and EXCHANGE.
  std::string Values(bool exposes) {
    std::vector<uint32_t> shards;
    uint64_t bytes = 0;
    for (uint32_t i = input_.Below(3); i > 0; --i) {
      shards.push_back(input_.Below(4));
      bytes += BytesOfShard(store_->Find(shards.back()));
    }
    if (input_.Bit()) {
      return Request(MessageType::kSet, Encode(SetRequest{shards}), Payload(0, bytes), exposes);
    }
    return Request(MessageType::kExchange,
                   Encode(ExchangeRequest{input_.Below(8), input_.Real(), shards}),
                   Payload(0, bytes), exposes);
  }

  std::string Table() {
    TableRequest create;
    for (uint32_t i = input_.Below(4) == 0 ? input_.Below(3) : 1; i > 0; --i) {
      create.entries.push_back(
          {TableName(input_.Below(3)), ConfigOf(input_.Below(4)), input_.Bit()});
      TableConfig& config = create.entries.back().config;
      switch (input_.Below(32)) {
        case 1:
          config.width = static_cast<uint32_t>(input_.Number());
          break;
        case 2:
          config.max_rows = input_.Number();
          break;
        case 3:
          config.min_count = input_.Below(3);
          break;
        case 4:
          config.ttl_seconds = input_.Real();
          break;
      }
    }
    return Request(MessageType::kTable, Encode(create));
  }

  std::string Edit(bool exposes) {
    EditRowsRequest edit;
    edit.table = input_.Below(3);
    edit.kind = static_cast<EditKind>(1 + input_.Below(5));
    edit.rows = input_.Number();
    edit.sequence = input_.Below(32);
    const ps::Table* const table = store_->FindTable(edit.table);
    edit.floats =
        table == nullptr || input_.Below(8) == 0 ? input_.Number() : table->EditFloats(edit.kind);
    const uint64_t row =
        sizeof(float) * edit.floats + (edit.kind == EditKind::kRestore ? 2 * sizeof(uint32_t) : 0);
    const bool fits = edit.rows < kMaxPayload && edit.floats < kMaxPayload;
    return Request(MessageType::kEditRows, Encode(edit),
                   Payload(edit.rows, fits ? edit.rows * row : 0), exposes);
  }

  std::string Elastic() {
    const UnitOfWork unit{input_.Below(2), input_.Below(3), input_.Below(3)};
    switch (input_.Below(3)) {
      case 0: {
        ResolveRequest resolve{unit, {}};
        for (uint32_t i = input_.Below(4); i > 0; --i) {
          resolve.workers.push_back(static_cast<uint32_t>(input_.Number()));
        }
        return Request(MessageType::kResolve, Encode(resolve));
      }
      case 1:
        return Request(MessageType::kCommit, Encode(CommitRequest{unit, input_.Bit()}));
      default:
        return Request(MessageType::kLeave, "");
    }
  }

  // Begins a snapshot, or reads more rows of the last one.
  void Snapshot() {
    if (input_.Bit()) {
      snapshot_ = handler_->recovery().TakeSnapshot(input_.Bit(), log_ ? log_->path : "");
      if (input_.Bit()) handler_->recovery().Saved();
    }
    SavedRows rows;
    for (const auto& table : snapshot_.tables) {
      table->NextSnapshotRows(1 + input_.Below(4), &rows);
      CHECK((rows.used.size() == rows.ids.size() && rows.counts.size() == rows.ids.size()));
      rows = {};
    }
  }

  Input& input_;
  double now_ = 0;
  std::unique_ptr<testing::Scratch> log_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<RequestHandler> handler_;
  ServerSnapshot snapshot_;
  ExposedMemory exposed_;
  std::deque<std::string> kept_;
  Peer peers_[kWorkers];
  uint64_t next_session_ = 1, number_ = 0;
};

void Run(Input input) { Server(&input).Run(); }

// Requests to begin with, as the functions above read them. Options: async, all else 0.
std::vector<std::string> Seeds() {
  const std::string options(7, '\0');
  const auto bytes = [](std::vector<int> values) {
    return std::string(values.begin(), values.end());
  };
  // A worker sends rows of table 0 without the last 8 bytes; the other one looks for rows.
  const std::string edit = bytes({0, 9, 0, 12, 0, 0, 4, 0, 1, 1, 2, 3, 4, 1, 7, 8});
  const std::string find = bytes({1, 9, 0, 14, 0, 2, 1, 1, 2, 1, 1});
  const std::string rest = bytes({0, 5});
  // The slots of table 0 are reset.
  const std::string table = bytes({1, 9, 0, 9, 1, 0, 2, 1, 0, 1});
  const std::string create = bytes({0, 9, 0, 1, 1, 2, 2, 8, 1, 1, 1});
  const std::string bind = bytes({0, 9, 2, 1, 0, 0, 0, 1});
  const std::string push = bytes({0, 9, 4, 1, 0, 0, 3, 1, 0, 0, 0, 0, 1, 0, 0, 1, 1});
  std::vector<std::string> seeds = AnyBytes();
  for (const std::string& steps : {edit + find + rest, table + find, create + bind + push}) {
    seeds.push_back(options + steps);
  }
  return seeds;
}

FUZZ_TARGET(Run, Seeds);

}  // namespace
}  // namespace tfdist::fuzz::ps_server
