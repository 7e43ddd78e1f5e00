#include "core/peer_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

namespace tfdist {
namespace {

constexpr size_t kPieces = 512;  // of a system call

uint64_t Random() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

iovec Cut(iovec* piece, size_t bytes) {
  const iovec front{piece->iov_base, bytes};
  piece->iov_base = static_cast<char*>(piece->iov_base) + bytes;
  piece->iov_len -= bytes;
  return front;
}

}  // namespace

Lender::Lender() {
  info_.process = getpid();
  info_.seal_address = reinterpret_cast<uint64_t>(seal_.data());
  for (size_t i = 0; i < seal_.size(); ++i) {
    info_.seal[i] = Random();
    seal_[i].store(info_.seal[i], std::memory_order_relaxed);
  }
}

Lender::~Lender() {
  // Nothing that follows may come before it.
  for (auto& word : seal_) word.exchange(0, std::memory_order_acq_rel);
}

bool PeerMemory::IsReadable() const { return lender_.process > 0 && IsSealed(); }

bool PeerMemory::IsSealed() const {
  Seal seal{};
  const iovec here{seal.data(), sizeof(seal)};
  const iovec there{reinterpret_cast<void*>(lender_.seal_address), sizeof(seal)};
  return process_vm_readv(lender_.process, &here, 1, &there, 1, 0) == sizeof(seal) &&
         seal == lender_.seal;
}

Status PeerMemory::Read(const std::vector<iovec>& to, const std::vector<iovec>& from) const {
  size_t bytes = 0;
  for (const iovec& piece : to) bytes += piece.iov_len;
  const ssize_t read =
      process_vm_readv(lender_.process, to.data(), to.size(), from.data(), from.size(), 0);
  const int error = read < 0 ? errno : EFAULT;
  if (!IsSealed()) return Status(StatusCode::kUnavailable, "what was lent was withdrawn");
  if (read == static_cast<ssize_t>(bytes)) return Status();
  return Status(StatusCode::kFailedPrecondition,
                StrCat("cannot read ", bytes, " bytes that process ", lender_.process,
                       " has lent: ", std::strerror(error)));
}

Status Borrowed::Read(const iovec* to, size_t count) {
  std::vector<iovec> here, there;
  for (size_t i = 0; i < count; ++i) {
    iovec rest = to[i];
    while (rest.iov_len > 0) {
      if (next_ == pieces_.size()) {
        return Status(StatusCode::kInternal, "less was lent than is to be read");
      }
      iovec& piece = pieces_[next_];
      const size_t bytes = std::min(rest.iov_len, piece.iov_len);
      if (bytes > 0) {
        here.push_back(Cut(&rest, bytes));
        there.push_back(Cut(&piece, bytes));
      }
      if (piece.iov_len == 0) ++next_;
      if (here.size() < kPieces) continue;
      if (Status s = peer_.Read(here, there); !s.ok()) return s;
      here.clear();
      there.clear();
    }
  }
  return here.empty() ? Status() : peer_.Read(here, there);
}

}  // namespace tfdist
