#include "core/ps/server/elastic_schedule.h"

#include <algorithm>

namespace tfdist::ps {

ElasticSchedule::Resolution ElasticSchedule::Resolve(const ResolveRequest& resolve) {
  const UnitOfWork& next = resolve.next;
  const bool is_former_job =
      std::find(former_jobs_.begin(), former_jobs_.end(), next.job) != former_jobs_.end();
  const bool is_founding = generation_ != 0 && next.job != job_;
  if (is_former_job || (!is_founding && next.generation < generation_)) {
    return Resolution::kRefused;
  }
  if (!is_founding && next.generation == generation_) return Resolution::kNothing;
  Resolution resolution = Resolution::kNothing;
  // The units of another job have begun anew.
  if (open_) {
    resolution = !is_founding && *open_ < next.number ? Resolution::kApply : Resolution::kDrop;
  }
  if (is_founding) {
    former_jobs_.push_back(job_);
    closed_.reset();
  }
  if (resolution == Resolution::kApply) closed_ = open_;
  EndUnit();
  job_ = next.job;
  generation_ = next.generation;
  for (Worker& worker : workers_) worker.is_member = false;
  for (const uint32_t worker : resolve.workers) workers_[worker].is_member = true;
  return resolution;
}

bool ElasticSchedule::IsOfMember(int worker, const UnitOfWork& unit) const {
  return generation_ != 0 && unit.job == job_ && unit.generation == generation_ &&
         workers_[worker].is_member;
}

std::optional<uint64_t> ElasticSchedule::Supersedes(int worker, const UnitOfWork& unit) const {
  const bool is_later = IsOfMember(worker, unit) && open_ && *open_ < unit.number;
  return is_later ? open_ : std::nullopt;
}

bool ElasticSchedule::Push(int worker, const UnitOfWork& unit) {
  if (!IsOfMember(worker, unit)) return false;
  if (open_ && *open_ > unit.number) return false;
  if (open_ != unit.number) EndUnit();
  open_ = unit.number;
  return true;
}

bool ElasticSchedule::Commit(int worker, const UnitOfWork& unit) {
  if (!IsOfMember(worker, unit)) return true;
  if (open_ == unit.number) {
    workers_[worker].has_committed = true;
    return true;
  }
  return closed_ && *closed_ >= unit.number;
}

bool ElasticSchedule::StepIsComplete() const {
  return open_ && std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
           return worker.has_committed || !worker.is_member;
         });
}

void ElasticSchedule::CloseStep() {
  closed_ = open_;
  EndUnit();
}

void ElasticSchedule::EndUnit() {
  open_.reset();
  for (Worker& worker : workers_) worker.has_committed = false;
}

}  // namespace tfdist::ps
