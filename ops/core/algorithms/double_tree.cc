#include "core/algorithms/double_tree.h"

#include <array>

namespace tfdist {
namespace {

constexpr int kTrees = 2;
constexpr int kNone = -1;

// How often a place can be halved.
int Height(int place) {
  int height = 0;
  while ((place & (1 << height)) == 0) ++height;
  return height;
}

// One rank's neighbours in one of the trees.
struct Node {
  int parent = kNone;
  std::vector<int> children;  // in ascending order of their places
  int height = 0;
};

int ParentPlace(int place, int size) {
  do {
    const int half = 1 << Height(place);
    place = (place & (2 * half)) != 0 ? place - half : place + half;
  } while (place > size);
  return place;
}

Node MakeNode(int tree, int rank, int size) {
  const auto place = [&](int r) { return (r + tree) % size + 1; };
  const auto rank_at = [&](int p) { return (p - 1 - tree + size) % size; };
  const int root = LargestPower(size), own = place(rank);
  Node node;
  node.height = Height(own);
  if (own != root) node.parent = rank_at(ParentPlace(own, size));
  for (int p = 1; p <= size; ++p) {
    if (p != root && ParentPlace(p, size) == own) node.children.push_back(rank_at(p));
  }
  return node;
}

int HeightOf(int tree, int rank, int size) { return Height((rank + tree) % size + 1); }

}  // namespace

Plan DoubleTree(int rank, int size, const std::vector<size_t>& bounds) {
  const int top = Height(LargestPower(size));
  Plan plan;
  plan.steps = 2 * top;
  std::array<Node, kTrees> nodes;
  for (int tree = 0; tree < kTrees; ++tree) {
    nodes[tree] = MakeNode(tree, rank, size);
    const Node& node = nodes[tree];
    const size_t begin = bounds[tree], bytes = bounds[tree + 1] - begin;
    Span sum = {Memory::kInput, begin};
    for (size_t i = 0; i < node.children.size(); ++i) {
      const bool is_last = node.parent == kNone && i + 1 == node.children.size();
      // The left child's ranks come before this one in the order of the tree.
      plan.Combine(HeightOf(tree, node.children[i], size), node.children[i], sum,
                   {Memory::kOutput, begin}, bytes, is_last ? Finish::kYes : Finish::kNo,
                   i == 0 ? Operands::kReceivedFirst : Operands::kOwnFirst);
      sum.memory = Memory::kOutput;
    }
    if (node.parent != kNone) plan.Send(node.height, node.parent, sum, bytes);
  }
  for (int tree = 0; tree < kTrees; ++tree) {
    const Node& node = nodes[tree];
    const size_t begin = bounds[tree], bytes = bounds[tree + 1] - begin;
    const Span result = {Memory::kOutput, begin};
    if (node.parent != kNone) {
      plan.Receive(2 * top - 1 - node.height, node.parent, result, bytes);
    }
    for (const int child : node.children) {
      plan.Send(2 * top - 1 - HeightOf(tree, child, size), child, result, bytes);
    }
  }
  return plan;
}

}  // namespace tfdist
