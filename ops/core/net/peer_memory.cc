#include "core/net/peer_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

namespace tfdist {
namespace {

constexpr size_t kMaxPiecesPerRead = 512;  // per system call, of IOV_MAX = 1024

uint64_t Random() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

iovec CutFront(iovec* piece, size_t bytes) {
  const iovec front{piece->iov_base, bytes};
  piece->iov_base = static_cast<char*>(piece->iov_base) + bytes;
  piece->iov_len -= bytes;
  return front;
}

}  // namespace

ExposedMemory::ExposedMemory() {
  info_.address = reinterpret_cast<uint64_t>(canary_.data());
  for (size_t i = 0; i < canary_.size(); ++i) {
    info_.value[i] = Random();
    canary_[i].store(info_.value[i], std::memory_order_relaxed);
  }
}

ExposedMemory::~ExposedMemory() {
  // acq_rel: no later write may move before it.
  for (auto& word : canary_) word.exchange(0, std::memory_order_acq_rel);
}

bool PeerMemory::IsReadable() const {
  CanaryInfo found;
  return process_ != nullptr && canary_.address != 0 && ReadCanary(&found) &&
         found.value == canary_.value && process_->IsAlive();
}

bool PeerMemory::ReadCanary(CanaryInfo* found) const {
  const iovec here{found->value.data(), sizeof(found->value)};
  const iovec there{reinterpret_cast<void*>(canary_.address), sizeof(found->value)};
  return process_vm_readv(process_->id(), &here, 1, &there, 1, 0) == sizeof(found->value);
}

// A canary that cannot be read tells nothing: the kernel may refuse all reads from now on.
bool PeerMemory::IsWithdrawn() const {
  CanaryInfo found;
  return !process_->IsAlive() || (ReadCanary(&found) && found.value != canary_.value);
}

Status PeerMemory::Read(std::vector<iovec> to, std::vector<iovec> from) const {
  size_t bytes = 0;
  for (const iovec& piece : to) bytes += piece.iov_len;
  // The kernel copies pieces in their order. With the canary as the last one, a single system call
  // reads the exposed memory, and proves that it was still exposed.
  CanaryInfo found;
  to.push_back({found.value.data(), sizeof(found.value)});
  from.push_back({reinterpret_cast<void*>(canary_.address), sizeof(found.value)});
  const ssize_t read =
      process_vm_readv(process_->id(), to.data(), to.size(), from.data(), from.size(), 0);
  const int error = read < 0 ? errno : EFAULT;
  const bool is_whole = read == static_cast<ssize_t>(bytes + sizeof(found.value));
  if (is_whole && found.value == canary_.value && process_->IsAlive()) return Status();
  if (is_whole || IsWithdrawn()) {
    return Status(StatusCode::kUnavailable, "the peer exposes its memory no more");
  }
  return Status(StatusCode::kFailedPrecondition,
                StrCat("cannot read ", bytes, " bytes that process ", process_->id(),
                       " exposes: ", std::strerror(error)));
}

Status RemoteRead::Read(const iovec* to, size_t count) {
  std::vector<iovec> here, there;
  for (size_t i = 0; i < count; ++i) {
    iovec rest = to[i];
    while (rest.iov_len > 0) {
      if (next_ == pieces_.size()) {
        return Status(StatusCode::kInternal, "the peer exposes less than is to be read");
      }
      iovec& piece = pieces_[next_];
      const size_t bytes = std::min(rest.iov_len, piece.iov_len);
      if (bytes > 0) {
        here.push_back(CutFront(&rest, bytes));
        there.push_back(CutFront(&piece, bytes));
      }
      if (piece.iov_len == 0) ++next_;
      if (here.size() < kMaxPiecesPerRead) continue;
      if (Status s = peer_.Read(std::move(here), std::move(there)); !s.ok()) return s;
      here.clear();
      there.clear();
    }
  }
  return here.empty() ? Status() : peer_.Read(std::move(here), std::move(there));
}

}  // namespace tfdist
