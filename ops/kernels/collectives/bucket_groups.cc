#include "kernels/collectives/bucket_groups.h"

#include <algorithm>

#include "kernels/conversions.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tfdist {
namespace {

// A signature of all blocks together.
Signature Joined(const std::vector<WaitingBlock>& blocks) {
  constexpr uint64_t kFnvPrime = 0x100000001b3;
  Signature signature = blocks.front().signature;
  for (size_t i = 1; i < blocks.size(); ++i) {
    signature.shape_hash = (signature.shape_hash ^ blocks[i].signature.shape_hash) * kFnvPrime;
  }
  if (blocks.size() > 1) {
    signature.name += StrCat(" and the next ", blocks.size() - 1, " blocks");
    signature.shapes += " and more";
  }
  return signature;
}

}  // namespace

bool BucketGroup::Has(size_t position) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return blocks_[position].context != nullptr;
}

BucketGroup::Added BucketGroup::Add(size_t position, const WaitingBlock& block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kFilling) return Added::kNo;
  blocks_[position] = block;
  return ++arrived_ == blocks_.size() ? Added::kCompletes : Added::kYes;
}

void BucketGroup::Start(const std::shared_ptr<BucketGroup>& group) {
  std::vector<iovec> input, output;
  CollectiveOptions options;
  {
    const std::lock_guard<std::mutex> lock(group->mutex_);
    if (group->state_ != State::kFilling) return;
    group->state_ = State::kStarted;
    for (const WaitingBlock& block : group->blocks_) {
      input.insert(input.end(), block.input.begin(), block.input.end());
      output.insert(output.end(), block.output.begin(), block.output.end());
    }
    options.signature = Joined(group->blocks_);
    group->id_ = {group->shape_.key, group->shape_.communicator->NextSequence(group->shape_.key)};
  }
  options.signature.stripes_from = group->shape_.begin;
  options.id = group->id_;
  options.timeout_seconds = group->shape_.timeout_seconds;
  options.done = [group](const Status& status) { group->End(ToTensorFlow(status)); };
  group->shape_.communicator->AllReduce(std::move(options), FlatView(std::move(input)),
                                        FlatView(std::move(output)), group->shape_.dtype,
                                        group->shape_.reduce_op);
}

void BucketGroup::Cancel() {
  State before;
  std::string label;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    before = state_;
    if (before == State::kFilling) state_ = State::kCancelled;
    for (const WaitingBlock& block : blocks_) {
      if (label.empty()) label = block.signature.name;
    }
  }
  if (before == State::kStarted) shape_.communicator->Cancel(id_);
  if (before != State::kFilling) return;
  // The peers wait for this bucket, which will not come.
  shape_.communicator->Abort(
      Status(StatusCode::kUnavailable,
             StrCat("'", label, "' was cancelled, because its step failed or was stopped")));
  End(absl::CancelledError(StrCat("'", label, "' was cancelled")));
}

void BucketGroup::End(const absl::Status& status) {
  std::vector<WaitingBlock> blocks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::kEnded) return;
    state_ = State::kEnded;
    blocks = std::move(blocks_);
    blocks_.resize(blocks.size());
  }
  for (const WaitingBlock& block : blocks) {
    if (block.context == nullptr) continue;
    if (tensorflow::CancellationManager* manager = block.context->cancellation_manager()) {
      // Not DeregisterCallback: it would wait for a running cancellation, which may wait for this.
      manager->TryDeregisterCallback(block.cancellation);
    }
    if (!status.ok()) block.context->SetStatus(status);
    block.done();
  }
}

BucketGroups& BucketGroups::Get() {
  static BucketGroups* const groups = new BucketGroups;
  return *groups;
}

std::shared_ptr<BucketGroup> BucketGroups::Find(const BucketGroup::Shape& shape, size_t position) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::list<std::shared_ptr<BucketGroup>>& groups = waiting_[{shape.communicator.get(), shape.key}];
  const auto found = std::find_if(groups.begin(), groups.end(),
                                  [position](const auto& group) { return !group->Has(position); });
  if (found != groups.end()) return *found;
  groups.push_back(std::make_shared<BucketGroup>(shape));
  return groups.back();
}

void BucketGroups::Remove(const BucketGroup::Shape& shape,
                          const std::shared_ptr<BucketGroup>& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = waiting_.find({shape.communicator.get(), shape.key});
  if (found == waiting_.end()) return;
  found->second.remove(group);
  if (found->second.empty()) waiting_.erase(found);
}

}  // namespace tfdist
