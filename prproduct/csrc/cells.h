// One step of a recurrent layer for one sequence, and its backward: ops/cells.py has the step in torch.
//
// a: the gates from the input; b + bias: the gates from the hidden state; h and c: the state, which is replaced.
#pragma once

#include "vector_math.h"

namespace prproduct {

// i, f, g, o = σ, σ, tanh, σ of the gates; c' = f∘c + i∘g; h' = o∘tanh c'
template <class T>
PRPRODUCT_CLONES void lstm_row(int64_t size, const T* a, const T* b, const T* bias, T* h, T* c) {
#pragma omp simd
  for (int64_t k = 0; k < size; ++k) {
    T i = vector_sigmoid(a[k] + b[k] + bias[k]);
    T f = vector_sigmoid(a[size + k] + b[size + k] + bias[size + k]);
    T g = vector_tanh(a[2 * size + k] + b[2 * size + k] + bias[2 * size + k]);
    T o = vector_sigmoid(a[3 * size + k] + b[3 * size + k] + bias[3 * size + k]);
    c[k] = f * c[k] + i * g;
    h[k] = o * vector_tanh(c[k]);
  }
}

// grad_h and grad_c: of the next state; replaced by the parts for the state before that do not go through the gates.
template <class T>
PRPRODUCT_CLONES void lstm_row_backward(int64_t size, const T* a, const T* b, const T* bias, const T* c, T* grad_h,
                                        T* grad_c, T* grad_gates) {
#pragma omp simd
  for (int64_t k = 0; k < size; ++k) {
    T i = vector_sigmoid(a[k] + b[k] + bias[k]);
    T f = vector_sigmoid(a[size + k] + b[size + k] + bias[size + k]);
    T g = vector_tanh(a[2 * size + k] + b[2 * size + k] + bias[2 * size + k]);
    T o = vector_sigmoid(a[3 * size + k] + b[3 * size + k] + bias[3 * size + k]);
    T tanh_c = vector_tanh(f * c[k] + i * g);
    T whole_grad_c = grad_c[k] + grad_h[k] * o * (1 - tanh_c * tanh_c);
    grad_gates[k] = whole_grad_c * g * i * (1 - i);
    grad_gates[size + k] = whole_grad_c * c[k] * f * (1 - f);
    grad_gates[2 * size + k] = whole_grad_c * i * (1 - g * g);
    grad_gates[3 * size + k] = grad_h[k] * tanh_c * o * (1 - o);
    grad_c[k] = whole_grad_c * f;
    grad_h[k] = 0;
  }
}

// r, z = σ of the gates; n = tanh(a + r∘b); h' = (1 − z)∘n + z∘h
template <class T>
PRPRODUCT_CLONES void gru_row(int64_t size, const T* a, const T* b, const T* bias, T* h) {
#pragma omp simd
  for (int64_t k = 0; k < size; ++k) {
    T r = vector_sigmoid(a[k] + b[k] + bias[k]);
    T z = vector_sigmoid(a[size + k] + b[size + k] + bias[size + k]);
    T n = vector_tanh(a[2 * size + k] + r * (b[2 * size + k] + bias[2 * size + k]));
    h[k] = n + z * (h[k] - n);
  }
}

template <class T>
PRPRODUCT_CLONES void gru_row_backward(int64_t size, const T* a, const T* b, const T* bias, const T* h, T* grad_h,
                                       T* grad_a, T* grad_b) {
#pragma omp simd
  for (int64_t k = 0; k < size; ++k) {
    T r = vector_sigmoid(a[k] + b[k] + bias[k]);
    T z = vector_sigmoid(a[size + k] + b[size + k] + bias[size + k]);
    T from_hidden = b[2 * size + k] + bias[2 * size + k];
    T n = vector_tanh(a[2 * size + k] + r * from_hidden);
    T grad_n = grad_h[k] * (1 - z) * (1 - n * n);
    T grad_z = grad_h[k] * (h[k] - n) * z * (1 - z);
    T grad_r = grad_n * from_hidden * r * (1 - r);
    grad_a[k] = grad_r, grad_a[size + k] = grad_z, grad_a[2 * size + k] = grad_n;
    grad_b[k] = grad_r, grad_b[size + k] = grad_z, grad_b[2 * size + k] = grad_n * r;
    grad_h[k] *= z;
  }
}

// h' = tanh or relu of the gates
template <class T, bool relu>
PRPRODUCT_CLONES void rnn_row(int64_t size, const T* a, const T* b, const T* bias, T* h) {
#pragma omp simd
  for (int64_t k = 0; k < size; ++k) {
    T sum = a[k] + b[k] + bias[k];
    h[k] = relu ? (sum > 0 ? sum : (sum == sum ? T(0) : sum)) : vector_tanh(sum);
  }
}

template <class T, bool relu>
PRPRODUCT_CLONES void rnn_row_backward(int64_t size, const T* a, const T* b, const T* bias, T* grad_h, T* grad_gates) {
#pragma omp simd
  for (int64_t k = 0; k < size; ++k) {
    T sum = a[k] + b[k] + bias[k], h = relu ? T(0) : vector_tanh(sum);
    grad_gates[k] = relu ? (sum > 0 ? grad_h[k] : T(0)) : grad_h[k] * (1 - h * h);
    grad_h[k] = 0;
  }
}

}  // namespace prproduct
