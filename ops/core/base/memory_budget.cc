#include "core/base/memory_budget.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "core/base/status.h"

namespace tfdist::ps {
namespace {

// At least 1/8 and at most 1/2 of the budget is left to requests in progress.
constexpr uint64_t kMinPart = 8, kMaxPart = 2;

}  // namespace

std::string SizeText(uint64_t bytes) {
  auto size = static_cast<double>(bytes) / 1024;
  const char* const units[] = {"K", "M", "G", "T"};
  size_t unit = 0;
  for (; size >= 1024 && unit + 1 < std::size(units); ++unit) size /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f%s", size, units[unit]);
  return text;
}

std::string OverBudget::text() const {
  return StrCat("needs ", SizeText(needed_), " more, while ", SizeText(held_),
                " of its memory budget of ", SizeText(limit_),
                " (TFDIST_PS_MEMORY) are held; at least 1/", kMinPart,
                " is left to requests in progress");
}

bool MemoryBudget::HasRoom(uint64_t held, uint64_t persistent, uint64_t bytes,
                           MemoryUse use) const {
  if (limit_ == 0 || bytes == 0) return true;
  if (use == MemoryUse::kPersistent && !MayPersist(persistent, bytes)) return false;
  // A server that was restored with more persistent memory than the limit still serves requests.
  const uint64_t room = limit_ - std::min(persistent, limit_ - limit_ / kMinPart);
  const uint64_t transient = held - std::min(persistent, held);
  return bytes <= room && transient <= room - bytes;
}

bool MemoryBudget::MayPersist(uint64_t persistent, uint64_t bytes) const {
  const uint64_t transient = peak_transient_.load(std::memory_order_relaxed);
  const uint64_t max = limit_ - std::clamp(transient, limit_ / kMinPart, limit_ / kMaxPart);
  return limit_ == 0 || (bytes <= max && persistent <= max - bytes);
}

void MemoryBudget::CheckPersistent(uint64_t bytes) const {
  if (!MayPersist(persistent(), bytes)) throw OverBudget(bytes, held(), limit_);
}

bool MemoryBudget::TryTake(uint64_t bytes, MemoryUse use) {
  const uint64_t held = held_.fetch_add(bytes, std::memory_order_relaxed);
  uint64_t persistent = 0;
  if (use == MemoryUse::kPersistent)
    persistent = persistent_.fetch_add(bytes, std::memory_order_relaxed);
  if (HasRoom(held, persistent, bytes, use)) return true;
  Remove(bytes, use);
  return false;
}

void MemoryBudget::Take(uint64_t bytes, MemoryUse use) {
  if (TryTake(bytes, use)) return;
  Reclaim();
  if (!TryTake(bytes, use)) throw OverBudget(bytes, held(), limit_);
}

void MemoryBudget::Check(uint64_t bytes, MemoryUse use) const {
  if (HasRoom(bytes, use)) return;
  Reclaim();
  if (!HasRoom(bytes, use)) throw OverBudget(bytes, held(), limit_);
}

void MemoryBudget::Admit(uint64_t bytes) {
  if (limit_ == 0) return;
  Check(bytes, MemoryUse::kTransient);
  const uint64_t now = held();
  const uint64_t transient = bytes + now - std::min(persistent(), now);
  uint64_t peak = peak_transient_.load(std::memory_order_relaxed);
  while (peak < transient && !peak_transient_.compare_exchange_weak(peak, transient)) {
  }
}

void MemoryBudget::Add(uint64_t bytes, MemoryUse use) {
  held_.fetch_add(bytes, std::memory_order_relaxed);
  if (use == MemoryUse::kPersistent) persistent_.fetch_add(bytes, std::memory_order_relaxed);
}

void MemoryBudget::Remove(uint64_t bytes, MemoryUse use) {
  held_.fetch_sub(bytes, std::memory_order_relaxed);
  if (use == MemoryUse::kPersistent) persistent_.fetch_sub(bytes, std::memory_order_relaxed);
}

void MemoryCharge::SetBudget(std::shared_ptr<MemoryBudget> budget) {
  if (budget_ != nullptr) budget_->Remove(bytes_, use_);
  budget_ = std::move(budget);
  if (budget_ != nullptr) budget_->Add(bytes_, use_);
}

void MemoryCharge::Grow(uint64_t bytes, bool within_budget) {
  if (budget_ != nullptr && within_budget) {
    budget_->Take(bytes, use_);
  } else if (budget_ != nullptr) {
    budget_->Add(bytes, use_);
  }
  bytes_ += bytes;
}

void MemoryCharge::Shrink(uint64_t bytes) {
  if (budget_ != nullptr) budget_->Remove(bytes, use_);
  bytes_ -= bytes;
}

}  // namespace tfdist::ps
