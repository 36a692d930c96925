// SPDX-License-Identifier: Apache-2.0
// Box<&fn>::call is fn as torch's dispatcher calls it: arguments popped from a stack of 64-bit values,
// results pushed.
//
// What a schema type becomes in C++ (as parameter; take it by value or const reference):
//   Tensor -> Tensor     Tensor? -> std::optional<Tensor>     Tensor[] -> std::vector<Tensor>
//   int -> int64_t       float -> double      bool -> bool    str -> std::string     ScalarType -> Dtype
//   T? -> std::optional<T>   T[] -> std::vector<T>
// A result is one of these, a std::tuple of them, or void. Symbolic ints, Scalar and complex have no stable
// form.
#pragma once

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch_abi/tensor.h"

namespace plab::torch_abi {

// Numbers travel in the low bytes of the 64-bit value, pointers whole.
template <class T>
StackValue to_bits(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(StackValue));
  StackValue bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
T from_bits(StackValue bits) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(StackValue));
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// pop takes ownership of the value; push gives ownership away. Both follow libtorch's convention: a callee frees
// its inputs, and its outputs are new references.
template <class T>
struct Stack {
  static_assert(std::is_same_v<T, int64_t> || std::is_same_v<T, double> || std::is_same_v<T, bool>,
                "use int64_t, double or bool: the schema's int, float and bool are exactly these");
  static T pop(StackValue value) { return from_bits<T>(value); }
  static StackValue push(T value) { return to_bits(value); }
};

template <>
struct Stack<Tensor> {
  static Tensor pop(StackValue value) { return Tensor(from_bits<TensorHandle>(value)); }
  static StackValue push(Tensor value) { return to_bits(value.release()); }
};

template <>
struct Stack<Dtype> {
  static Dtype pop(StackValue value) { return dtype_from_torch(from_bits<int32_t>(value)); }
  static StackValue push(Dtype value) { return to_bits(to_torch(value)); }
};

template <>
struct Stack<std::string> {
  static std::string pop(StackValue value) {
    const auto handle = from_bits<StringHandle>(value);
    const char* characters = nullptr;
    size_t length = 0;
    const ErrorCode code =
        torch.torch_string_c_str(handle, &characters) | torch.torch_string_length(handle, &length);
    std::string result(code == 0 ? characters : "", code == 0 ? length : 0);
    torch.torch_delete_string(handle);
    check_torch(code, "torch_string_c_str");
    return result;
  }
};

template <class T>
struct Stack<std::optional<T>> {
  static std::optional<T> pop(StackValue value) {
    auto* inner = from_bits<StackValue*>(value);  // null for None, else owned by us
    if (inner == nullptr) return std::nullopt;
    const StackValue content = *inner;
    free_box(inner);
    return Stack<T>::pop(content);
  }
  static StackValue push(std::optional<T> value) {
    return to_bits(value ? new StackValue(Stack<T>::push(std::move(*value))) : nullptr);
  }

 private:
  static void free_box(StackValue* box) {
    if (torch.torch_delete_stable_ivalue != nullptr) {
      torch.torch_delete_stable_ivalue(box);
    } else {
      delete box;  // before torch 2.13 libtorch makes it with plain new
    }
  }
};

template <class T>
struct Stack<std::vector<T>> {
  static std::vector<T> pop(StackValue value) {
    const auto list = from_bits<ListHandle>(value);
    size_t size = 0;
    ErrorCode code = torch.torch_list_size(list, &size);
    std::vector<T> result;
    result.reserve(size);
    for (size_t i = 0; i < size && code == 0; ++i) {
      StackValue element;
      code = torch.torch_list_get_item(list, i, &element);
      if (code == 0) result.push_back(Stack<T>::pop(element));
    }
    torch.torch_delete_list(list);
    check_torch(code, "torch_list_get_item");
    return result;
  }
  static StackValue push(std::vector<T> values) {
    ListHandle list;
    PLAB_TORCH(torch_new_list_reserve_size, values.size(), &list);
    for (T& value : values) PLAB_TORCH(torch_list_push_back, list, Stack<T>::push(std::move(value)));
    return to_bits(list);
  }
};

template <auto kFunction>
struct Box;

template <class Result, class... Parameters, Result (*kFunction)(Parameters...)>
struct Box<kFunction> {
  static void call(StackValue* stack, uint64_t arguments, uint64_t results) {
    if (arguments != sizeof...(Parameters) || results != kResults) {
      throw std::logic_error("a schema and its C++ function disagree on the number of arguments or results");
    }
    run(stack, std::index_sequence_for<Parameters...>());
  }

 private:
  template <class T>
  struct Count : std::integral_constant<uint64_t, std::is_void_v<T> ? 0 : 1> {};
  template <class... Ts>
  struct Count<std::tuple<Ts...>> : std::integral_constant<uint64_t, sizeof...(Ts)> {};
  static constexpr uint64_t kResults = Count<Result>::value;

  template <size_t... kIndex>
  static void run(StackValue* stack, std::index_sequence<kIndex...>) {
    // All arguments are popped first, so every argument is freed if a check inside the function throws.
    std::tuple<std::remove_cvref_t<Parameters>...> values{
        Stack<std::remove_cvref_t<Parameters>>::pop(stack[kIndex])...};
    if constexpr (std::is_void_v<Result>) {
      kFunction(static_cast<Parameters&&>(std::get<kIndex>(values))...);
    } else {
      push(stack, kFunction(static_cast<Parameters&&>(std::get<kIndex>(values))...));
    }
  }

  template <class T>
  static void push(StackValue* stack, T result) {
    stack[0] = Stack<T>::push(std::move(result));
  }
  template <class... Ts>
  static void push(StackValue* stack, std::tuple<Ts...> result) {
    std::apply(
        [&](Ts&... one) {
          size_t i = 0;
          ((stack[i++] = Stack<Ts>::push(std::move(one))), ...);
        },
        result);
  }
};

}  // namespace plab::torch_abi
