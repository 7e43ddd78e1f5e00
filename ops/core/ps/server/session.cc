#include "core/ps/server/session.h"

#include <utility>

namespace tfdist::ps {
namespace {

StreamOptions Options() {
  StreamOptions options = MessageStreamOptions();
  options.receive_budget = 8 << 20;  // then the thread's other sessions have their turn
  options.max_outgoing = 64;         // a worker that does not take answers gets no more of them
  options.max_exposed_frames = 64;
  options.max_waiting_bytes = 256 << 20;
  return options;
}

}  // namespace

Session::Session(uint64_t id, int worker, PeerSocket socket, Store* store, OnRequest on_request)
    : store_(store),
      on_request_(std::move(on_request)),
      payload_(&store->pool()),
      stream_(std::move(socket), Options()) {
  client_.session = id;
  client_.worker = worker;
  stream_.Welcome();
}

Status Session::OnFrame(const FrameHeader& header, std::string_view meta) {
  if (client_.opened == (header.type == static_cast<uint8_t>(MessageType::kOpen))) {
    return Status(StatusCode::kInvalidArgument, "a connection begins with one OPEN, and only that");
  }
  if (Status s = Parse(header, meta, *store_, &request_); !s.ok()) return s;
  if (!request_.refusal.ok()) request_.parts.clear();
  try {
    payload_.Expect(std::move(request_.parts));
  } catch (const std::bad_alloc& error) {
    RefuseForMemory(error);
  }
  return Status();
}

// Nothing for a request that is refused: it is answered once all of it has come.
Status Session::OnPayload(const FrameHeader&, uint64_t received, std::vector<iovec>* target) {
  if (!request_.refusal.ok()) return Status();
  try {
    payload_.NextRoom(received, target);
  } catch (const std::bad_alloc& error) {
    target->clear();
    RefuseForMemory(error);
  }
  return Status();
}

Status Session::OnFrameEnd(const FrameHeader& header) {
  if (request_.refusal.ok()) request_.payload = payload_.Take(header.payload_bytes);
  return on_request_(std::move(request_));
}

void Session::RefuseForMemory(const std::bad_alloc& error) {
  payload_.Discard();
  store_->memory().Reclaim();
  const auto sharing = store_->Share();
  request_.refusal = OutOfMemory(request_, *store_, error);
}

void Session::Send(Answer answer) {
  std::vector<iovec> pieces;
  for (const BlockPtr& block : answer.payload) pieces.push_back({block->data(), block->bytes()});
  stream_.Queue(HeaderOf(answer.type, answer.id), std::move(answer.meta), std::move(pieces),
                {answer.payload.begin(), answer.payload.end()});
}

}  // namespace tfdist::ps
