// The functions that Python calls through ctypes. Every function that can fail returns a status
// code (0: OK) and writes its message into `error`, cut to `error_size` bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/base/c_error.h"
#include "core/base/handle_table.h"
#include "core/collectives/communicator.h"

namespace {

using tfdist::Communicator;
using tfdist::Report;
using tfdist::Status;
using tfdist::StatusCode;
using Communicators = tfdist::HandleTable<Communicator>;

Status ClosedCommunicator(int64_t handle) {
  return Status(StatusCode::kFailedPrecondition,
                tfdist::StrCat("communicator ", handle, " was closed"));
}

}  // namespace

extern "C" {

// Sizes of structures that Python declares too. It compares them when it loads the library.
size_t tfdist_sizeof_communicator_stats() { return sizeof(tfdist::CommunicatorStats); }

int tfdist_communicator_create(int rank, int size, const char* interface, int port,
                               int shared_memory, int64_t* handle, int* bound_port, char* error,
                               size_t error_size) {
  std::unique_ptr<Communicator> communicator;
  const Status status =
      Communicator::Create(rank, size, interface, port, &communicator, shared_memory != 0);
  if (status.ok()) {
    *bound_port = communicator->port();
    *handle = Communicators::Get().Add(std::move(communicator));
  }
  return Report(status, error, error_size);
}

// Puts a communicator of other ranks in the place of the handle's own, which is closed. Graphs that
// carry the handle use the new one.
int tfdist_communicator_reconfigure(int64_t handle, int rank, int size, const char* interface,
                                    int port, int shared_memory, int* bound_port, char* error,
                                    size_t error_size) {
  const std::shared_ptr<Communicator> former = Communicators::Get().Find(handle);
  if (former == nullptr) return Report(ClosedCommunicator(handle), error, error_size);
  // First of all: the new one may listen on the same port.
  former->Close();
  std::unique_ptr<Communicator> communicator;
  const Status status =
      Communicator::Create(rank, size, interface, port, &communicator, shared_memory != 0);
  if (!status.ok()) return Report(status, error, error_size);
  *bound_port = communicator->port();
  Communicators::Get().Replace(handle, std::move(communicator));
  return 0;
}

int tfdist_communicator_connect(int64_t handle, const uint8_t* key, uint64_t generation,
                                const char* const* addresses, int count, double timeout_seconds,
                                char* error, size_t error_size) {
  const std::shared_ptr<Communicator> communicator = Communicators::Get().Find(handle);
  if (communicator == nullptr) return Report(ClosedCommunicator(handle), error, error_size);
  tfdist::Key bytes;
  std::copy_n(key, bytes.size(), bytes.begin());
  const std::vector<std::string> list(addresses, addresses + count);
  return Report(communicator->Connect(bytes, generation, list, timeout_seconds), error, error_size);
}

int tfdist_communicator_status(int64_t handle, char* error, size_t error_size) {
  const std::shared_ptr<Communicator> communicator = Communicators::Get().Find(handle);
  return Report(communicator == nullptr ? ClosedCommunicator(handle) : communicator->status(),
                error, error_size);
}

// Writes Communicator::Waiting(seconds) into `text`, cut to `size` bytes.
void tfdist_communicator_waiting(int64_t handle, double seconds, char* text, size_t size) {
  const std::shared_ptr<Communicator> communicator = Communicators::Get().Find(handle);
  const std::string waiting = communicator == nullptr ? "" : communicator->Waiting(seconds);
  std::snprintf(text, size, "%s", waiting.c_str());
}

void tfdist_communicator_abort(int64_t handle, const char* why) {
  if (const auto communicator = Communicators::Get().Find(handle)) {
    communicator->Abort(Status(StatusCode::kUnavailable, why));
  }
}

void tfdist_communicator_leave(int64_t handle) {
  if (const auto communicator = Communicators::Get().Find(handle)) communicator->Leave();
}

void tfdist_communicator_close(int64_t handle) {
  // Closed here: a collective in progress may hold the last reference, and must not join its own
  // thread.
  if (const auto communicator = Communicators::Get().Remove(handle)) communicator->Close();
}

void tfdist_communicator_stats(int64_t handle, tfdist::CommunicatorStats* stats) {
  const auto communicator = Communicators::Get().Find(handle);
  *stats = communicator == nullptr ? tfdist::CommunicatorStats() : communicator->stats();
}

// Writes how long this rank has waited for each rank, in nanoseconds; `size` is their number.
void tfdist_communicator_waits(int64_t handle, uint64_t* nanoseconds, int size) {
  const auto communicator = Communicators::Get().Find(handle);
  for (int rank = 0; rank < size; ++rank) {
    const bool exists = communicator != nullptr && rank < communicator->size();
    nanoseconds[rank] = exists ? communicator->WaitedFor(rank) : 0;
  }
}

// Writes the title of the collective in which it has waited longest for `peer` since the last call,
// cut to `size` bytes.
void tfdist_communicator_take_longest_wait(int64_t handle, int peer, char* text, size_t size) {
  const auto communicator = Communicators::Get().Find(handle);
  const bool exists = communicator != nullptr && peer >= 0 && peer < communicator->size();
  const std::string title = exists ? communicator->TakeLongestWait(peer) : "";
  std::snprintf(text, size, "%s", title.c_str());
}

// Writes the bytes sent to, and received from, each rank; `size` is their number.
void tfdist_communicator_traffic(int64_t handle, uint64_t* sent, uint64_t* received, int size) {
  const auto communicator = Communicators::Get().Find(handle);
  for (int rank = 0; rank < size; ++rank) {
    const bool exists = communicator != nullptr && rank < communicator->size();
    sent[rank] = exists ? communicator->BytesSentTo(rank) : 0;
    received[rank] = exists ? communicator->BytesReceivedFrom(rank) : 0;
  }
}

}  // extern "C"
