#include "core/collectives/communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/base/checksum.h"
#include "core/collectives/selector.h"
#include "core/net/connect.h"

namespace tfdist {
namespace {

Signature& Fill(CollectiveOptions* options, CollectiveKind kind, DType dtype) {
  options->signature.kind = static_cast<uint8_t>(kind);
  options->signature.dtype = static_cast<uint8_t>(dtype);
  return options->signature;
}

void CopyBytes(const FlatView& from, size_t from_begin, const FlatView& to, size_t to_begin,
               size_t bytes) {
  std::vector<iovec> in, out;
  from.Slice(from_begin, from_begin + bytes, &in);
  to.Slice(to_begin, to_begin + bytes, &out);
  for (size_t i = 0, j = 0, skip_i = 0, skip_j = 0; i < in.size() && j < out.size();) {
    const size_t part = std::min(in[i].iov_len - skip_i, out[j].iov_len - skip_j);
    char* const target = static_cast<char*>(out[j].iov_base) + skip_j;
    const char* const source = static_cast<const char*>(in[i].iov_base) + skip_i;
    if (target != source) std::memcpy(target, source, part);
    skip_i += part;
    skip_j += part;
    if (skip_i == in[i].iov_len) ++i, skip_i = 0;
    if (skip_j == out[j].iov_len) ++j, skip_j = 0;
  }
}

// Copies this rank's block to itself.
void CopyOwn(const Signature& signature, int rank, int size, const FlatView& input,
             const FlatView& output) {
  const std::vector<uint64_t>& blocks = signature.blocks;
  const auto before = [&blocks](int block) {
    return std::accumulate(blocks.begin(), blocks.begin() + block, size_t{0});
  };
  const bool root = rank == static_cast<int>(signature.root);
  switch (static_cast<CollectiveKind>(signature.kind)) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kReduceScatter:
      if (size == 1) CopyBytes(input, 0, output, 0, output.bytes());
      return;
    case CollectiveKind::kGather:
      if (root) CopyBytes(input, 0, output, before(rank), blocks[rank]);
      return;
    case CollectiveKind::kScatter:
      if (root) CopyBytes(input, before(rank), output, 0, blocks[rank]);
      return;
    case CollectiveKind::kAllToAll:
      CopyBytes(input, before(rank), output, before(size + rank) - before(size), blocks[rank]);
      return;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      return;
  }
}

}  // namespace

Status Communicator::Create(int rank, int size, const std::string& interface, int port,
                            std::unique_ptr<Communicator>* out, bool shared_memory) {
  if (size < 1 || rank < 0 || rank >= size) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected 0 <= rank < size, received rank ", rank, " and size ", size));
  }
  Listener listener;
  if (Status s = Listener::Listen(interface, port, shared_memory, &listener); !s.ok()) {
    return Status(s.code(), StrCat("rank ", rank, " of ", size, ": ", s.message()));
  }
  std::unique_ptr<Communicator> made(
      new Communicator(rank, size, std::move(listener), shared_memory));
  if (Status s = made->engine_.Create(); !s.ok()) {
    return Status(s.code(), StrCat(made->group_.Self(), ": ", s.message()));
  }
  *out = std::move(made);
  return Status();
}

Communicator::Communicator(int rank, int size, Listener listener, bool shared_memory)
    : group_{rank, size, {}, std::vector<int>(size, 0)},
      port_(listener.port()),
      shared_memory_(shared_memory),
      engine_(&group_, std::move(listener), shared_memory) {}

Communicator::~Communicator() { Close(); }

void Communicator::Close() { engine_.Close(); }

Status Communicator::Connect(const Key& key, uint64_t generation,
                             const std::vector<std::string>& addresses, double timeout_seconds) {
  if (static_cast<int>(addresses.size()) != group_.size) {
    return Status(StatusCode::kInvalidArgument, StrCat(group_.Self(), ": expected ", group_.size,
                                                       " addresses, received ", addresses.size()));
  }
  if (engine_.running()) {
    return Status(StatusCode::kFailedPrecondition, StrCat(group_.Self(), ": is connected already"));
  }
  const TimePoint deadline = Clock::now() + DurationOf(timeout_seconds);
  group_.addresses = addresses;
  group_.hosts = NumberHosts(addresses);
  Checksum of_ranks;
  of_ranks.Add(&generation, sizeof generation);
  for (const std::string& address : addresses) of_ranks.Add(address.data(), address.size() + 1);
  group_.id = of_ranks.value();
  engine_.Start(key, generation);
  for (int peer = 0; peer < group_.rank; ++peer) {
    PeerSocket socket;
    Welcome welcome;
    const Status s = DialPeer(peer, key, generation, deadline, &socket, &welcome);
    if (!s.ok()) {
      return Status(s.code(), StrCat(group_.Self(), ": cannot connect to ", group_.Name(peer), ": ",
                                     s.message()));
    }
    engine_.AddDialled(peer, std::move(socket), std::move(welcome));
  }
  const std::vector<int> missing = engine_.WaitForPeers(deadline);
  if (missing.empty()) return Status();
  std::string names;
  for (const int peer : missing) names += StrCat(names.empty() ? "" : ", ", group_.Name(peer));
  std::string refused = engine_.last_refusal();
  if (!refused.empty()) refused = StrCat("; the last connection that was refused: ", refused);
  return Status(StatusCode::kDeadlineExceeded,
                StrCat(group_.Self(), ": no data connection from ", names, " within ",
                       timeout_seconds, " s", refused));
}

Status Communicator::DialPeer(int peer, const Key& key, uint64_t generation, TimePoint deadline,
                              PeerSocket* socket, Welcome* welcome) const {
  Hello hello;
  hello.generation = generation;
  hello.rank = static_cast<uint32_t>(group_.rank);
  hello.to = static_cast<uint32_t>(peer);
  if (Status s =
          tfdist::Connect(group_.addresses[peer], SharesWith(peer), key, hello, deadline, socket);
      !s.ok()) {
    return s;
  }
  FrameHeaderBytes bytes;
  const bool local = socket->process != nullptr;
  Status s = local ? ReceiveWithDescriptor(socket->fd, bytes.data(), bytes.size(),
                                           &welcome->descriptor, deadline)
                   : ReceiveAll(*socket, bytes.data(), bytes.size(), deadline);
  FrameHeader header;
  if (s.ok()) s = Decode(bytes.data(), LimitsOfConnection, &header);
  if (!s.ok()) return s;
  if (!header.Is(FrameType::kWelcome) || (header.meta_bytes > 0 && !local)) {
    return Status(StatusCode::kInternal, StrCat("expected a WELCOME, received ", header.meta_bytes,
                                                " bytes in a frame of type ", int{header.type}));
  }
  welcome->meta.resize(header.meta_bytes);
  s = ReceiveAll(*socket, welcome->meta.data(), welcome->meta.size(), deadline);
  Sharing offer;
  return s.ok() && !welcome->meta.empty() ? Decode(welcome->meta, "WELCOME frame", &offer) : s;
}

bool Communicator::SharesWith(int peer) const {
  const auto host = [this](int rank) {
    const std::string& address = group_.addresses[rank];
    return address.substr(0, address.rfind(':'));
  };
  return shared_memory_ && host(peer) == host(group_.rank);
}

uint64_t Communicator::NextSequence(uint64_t key) { return engine_.table().NextSequence(key); }

void Communicator::Cancel(const CollectiveId& id) { engine_.Cancel(id); }

void Communicator::Abort(const Status& status) { engine_.Abort(status); }

void Communicator::Leave() { engine_.Leave(); }

std::string Communicator::Waiting(double seconds) { return engine_.Waiting(seconds); }

Status Communicator::status() const { return engine_.table().failure(); }

CommunicatorStats Communicator::stats() const {
  CommunicatorStats stats;
  engine_.table().AddTo(&stats);
  stats.rejected_connections = engine_.rejected_connections();
  return stats;
}

void Communicator::AllReduce(CollectiveOptions options, FlatView input, FlatView output,
                             DType dtype, ReduceOp reduce_op) {
  Signature& signature = Fill(&options, CollectiveKind::kAllReduce, dtype);
  signature.reduce_op = static_cast<uint8_t>(reduce_op);
  signature.elements = output.bytes() / ByteSize(dtype);
  Start(std::move(options), 0, std::move(input), std::move(output));
}

void Communicator::Reduce(CollectiveOptions options, FlatView input, FlatView output, DType dtype,
                          ReduceOp reduce_op, int root) {
  Signature& signature = Fill(&options, CollectiveKind::kReduce, dtype);
  signature.reduce_op = static_cast<uint8_t>(reduce_op);
  signature.elements = input.bytes() / ByteSize(dtype);
  Start(std::move(options), root, std::move(input), std::move(output));
}

void Communicator::ReduceScatter(CollectiveOptions options, FlatView input, FlatView output,
                                 DType dtype, ReduceOp reduce_op,
                                 const std::vector<size_t>& block_bytes) {
  Signature& signature = Fill(&options, CollectiveKind::kReduceScatter, dtype);
  signature.reduce_op = static_cast<uint8_t>(reduce_op);
  signature.blocks.assign(block_bytes.begin(), block_bytes.end());
  Start(std::move(options), 0, std::move(input), std::move(output));
}

void Communicator::AllGather(CollectiveOptions options, DType dtype,
                             const std::vector<size_t>& block_bytes, FlatView output) {
  Signature& signature = Fill(&options, CollectiveKind::kAllGather, dtype);
  signature.blocks.assign(block_bytes.begin(), block_bytes.end());
  Start(std::move(options), 0, FlatView(), std::move(output));
}

void Communicator::Gather(CollectiveOptions options, DType dtype,
                          const std::vector<size_t>& block_bytes, int root, FlatView input,
                          FlatView output) {
  Signature& signature = Fill(&options, CollectiveKind::kGather, dtype);
  signature.blocks.assign(block_bytes.begin(), block_bytes.end());
  Start(std::move(options), root, std::move(input), std::move(output));
}

void Communicator::Scatter(CollectiveOptions options, DType dtype,
                           const std::vector<size_t>& block_bytes, int root, FlatView input,
                           FlatView output) {
  Signature& signature = Fill(&options, CollectiveKind::kScatter, dtype);
  signature.blocks.assign(block_bytes.begin(), block_bytes.end());
  Start(std::move(options), root, std::move(input), std::move(output));
}

void Communicator::AllToAll(CollectiveOptions options, DType dtype,
                            const std::vector<size_t>& send_bytes,
                            const std::vector<size_t>& receive_bytes, FlatView input,
                            FlatView output) {
  Signature& signature = Fill(&options, CollectiveKind::kAllToAll, dtype);
  signature.blocks.assign(send_bytes.begin(), send_bytes.end());
  signature.blocks.insert(signature.blocks.end(), receive_bytes.begin(), receive_bytes.end());
  Start(std::move(options), 0, std::move(input), std::move(output));
}

void Communicator::Barrier(CollectiveOptions options) {
  Fill(&options, CollectiveKind::kBarrier, DType::kBytes);
  // Every barrier sends and receives the same byte, whose value is ignored.
  auto token = std::make_shared<char>('!');
  const FlatView output({{token.get(), 1}});
  Start(std::move(options), 0, FlatView(), output, std::move(token));
}

void Communicator::Broadcast(CollectiveOptions options, DType dtype, int root, FlatView buffer) {
  Signature& signature = Fill(&options, CollectiveKind::kBroadcast, dtype);
  signature.elements = buffer.bytes() / ByteSize(dtype);
  Start(std::move(options), root, FlatView(), std::move(buffer));
}

// Why a collective cannot start, or OK.
Status Communicator::CheckStart(const Signature& signature, int root, Algorithm algorithm,
                                size_t input_bytes, size_t output_bytes) const {
  const CollectiveKind kind = static_cast<CollectiveKind>(signature.kind);
  const DType dtype = static_cast<DType>(signature.dtype);
  const auto bad = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(group_.Self(), ": ", Title(signature), " ", what));
  };
  if (root < 0 || root >= group_.size) {
    return bad(StrCat("expected a root from 0 to ", group_.size - 1, ", received ", root));
  }
  const ReduceOp reduce_op = static_cast<ReduceOp>(signature.reduce_op);
  if (Reduces(kind) && !CanReduce(dtype, reduce_op)) {
    return bad(
        StrCat("cannot reduce ", Describe(dtype, signature.elements), " by ", Name(reduce_op)));
  }
  const size_t all = kind == CollectiveKind::kAllToAll ? 2 * group_.size : group_.size;
  if (HasBlocks(kind) && signature.blocks.size() != all) {
    return bad(StrCat("expected ", all, " sizes of blocks, received ", signature.blocks.size()));
  }
  if (kind == CollectiveKind::kAllToAll &&
      signature.blocks[group_.rank] != signature.blocks[group_.size + group_.rank]) {
    return bad(StrCat("sends itself ", signature.blocks[group_.rank], " bytes and expects ",
                      signature.blocks[group_.size + group_.rank]));
  }
  const DataBytes expected = ExpectedBytes(signature, group_.rank, group_.size);
  if (expected.input != input_bytes || expected.output != output_bytes) {
    return bad(StrCat("expected input and output of ", expected.input, " and ", expected.output,
                      " bytes, received ", input_bytes, " and ", output_bytes));
  }
  if (algorithm != Algorithm::kAuto && !HasAlgorithm(kind, algorithm)) {
    return bad(StrCat("has no algorithm '", Name(algorithm), "'"));
  }
  return Status();
}

void Communicator::Start(CollectiveOptions options, int root, FlatView input, FlatView output,
                         std::shared_ptr<void> kept) {
  Signature& signature = options.signature;
  if (HasRoot(static_cast<CollectiveKind>(signature.kind))) {
    signature.root = static_cast<uint32_t>(root);
  }
  const Status bad = CheckStart(signature, root, options.algorithm, input.bytes(), output.bytes());
  if (!bad.ok()) return options.done(bad);
  const Algorithm algorithm = options.algorithm == Algorithm::kAuto
                                  ? SelectAlgorithm(signature, group_.hosts)
                                  : options.algorithm;
  signature.algorithm = static_cast<uint8_t>(algorithm);
  signature.joins = engine_.table().joins();
  if (const int segments = StripedSegments(signature, group_.hosts); segments > 0) {
    input = InOrderOfStripes(input, signature, segments);
    output = InOrderOfStripes(output, signature, segments);
  }
  CopyOwn(signature, group_.rank, group_.size, input, output);
  Submit(MakePlanExecutor(std::move(options), group_.rank, group_.hosts, std::move(input),
                          std::move(output), std::move(kept)));
}

void Communicator::Join(CollectiveOptions options, int* last_rank) {
  Submit(engine_.table().MakeJoin(std::move(options), last_rank));
}

void Communicator::Submit(std::unique_ptr<Collective> collective) {
  engine_.table().Submit(collective.get());
  if (group_.size == 1) return engine_.table().EndAlone(std::move(collective));
  if (!engine_.running() && status().ok()) {
    return collective->Finish(
        Status(StatusCode::kFailedPrecondition,
               StrCat(group_.Self(), ": ", collective->Title(), " was started before Connect")));
  }
  engine_.Submit(std::move(collective));
}

}  // namespace tfdist
